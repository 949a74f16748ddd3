CREATE TABLE IF NOT EXISTS agent_sessions (
    session_id VARCHAR COLLATE "C" NOT NULL,
    created_at TIMESTAMP WITHOUT TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    updated_at TIMESTAMP WITHOUT TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (session_id)
);

CREATE TABLE IF NOT EXISTS agent_messages (
    id SERIAL NOT NULL,
    session_id VARCHAR COLLATE "C" NOT NULL,
    message_data TEXT NOT NULL,
    created_at TIMESTAMP WITHOUT TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS idx_agent_messages_session_time ON agent_messages (session_id, created_at);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata (
    session_id VARCHAR COLLATE "C" NOT NULL,
    key VARCHAR(255) COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    search_key BYTEA NOT NULL,
    search_rest BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (session_id, key),
    CONSTRAINT agent_sessions_metadata_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_search_idx ON agent_sessions_metadata (key, search_key, session_id);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_elements (
    session_id VARCHAR COLLATE "C" NOT NULL,
    key VARCHAR(255) COLLATE "C" NOT NULL,
    position INTEGER NOT NULL,
    search_key BYTEA NOT NULL,
    search_rest BYTEA NOT NULL,
    PRIMARY KEY (session_id, key, position),
    CONSTRAINT agent_sessions_metadata_elements_key_fk FOREIGN KEY(session_id, key) REFERENCES agent_sessions_metadata (session_id, key) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_elements_search_idx ON agent_sessions_metadata_elements (key, search_key, session_id);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_indexes (
    key VARCHAR(255) COLLATE "C" NOT NULL,
    state INTEGER NOT NULL,
    token VARCHAR(255) COLLATE "C" NOT NULL,
    PRIMARY KEY (key)
);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_activity (
    session_id VARCHAR COLLATE "C" NOT NULL,
    key VARCHAR(255) COLLATE "C" NOT NULL,
    position INTEGER NOT NULL,
    of_list INTEGER NOT NULL,
    search_key BYTEA NOT NULL,
    updated_at TIMESTAMP WITHOUT TIME ZONE,
    PRIMARY KEY (session_id, key, position),
    CONSTRAINT agent_sessions_metadata_activity_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_activity_order_idx ON agent_sessions_metadata_activity (key, of_list, search_key, updated_at, session_id COLLATE "C");

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_runs (
    session_id VARCHAR COLLATE "C" NOT NULL,
    run_id VARCHAR(32) NOT NULL,
    status VARCHAR(16) NOT NULL,
    token VARCHAR(32) NOT NULL,
    expires BIGINT NOT NULL,
    run_key VARCHAR(64),
    started_at BIGINT NOT NULL,
    paused_at BIGINT,
    agent TEXT NOT NULL,
    input TEXT NOT NULL,
    state TEXT,
    pending TEXT,
    error TEXT,
    progress TEXT NOT NULL,
    last_item BIGINT NOT NULL,
    PRIMARY KEY (session_id),
    CONSTRAINT agent_sessions_metadata_runs_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_runs_order_idx ON agent_sessions_metadata_runs (started_at, session_id);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_run_steps (
    session_id VARCHAR COLLATE "C" NOT NULL,
    number INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (session_id, number),
    CONSTRAINT agent_sessions_metadata_run_steps_run_fk FOREIGN KEY(session_id) REFERENCES agent_sessions_metadata_runs (session_id) ON DELETE CASCADE
);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_run_keys (
    session_id VARCHAR COLLATE "C" NOT NULL,
    run_key VARCHAR(64) NOT NULL,
    run_id VARCHAR(32) NOT NULL,
    ended_at BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    PRIMARY KEY (session_id, run_key),
    CONSTRAINT agent_sessions_metadata_run_keys_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_run_decisions (
    id BIGSERIAL NOT NULL,
    session_id VARCHAR COLLATE "C",
    run_id VARCHAR(32) NOT NULL,
    call_id TEXT NOT NULL,
    tool TEXT,
    agent TEXT,
    approve BOOLEAN NOT NULL,
    message TEXT,
    decided_by TEXT,
    decided_at BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT agent_sessions_metadata_run_decisions_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE SET NULL,
    CONSTRAINT agent_sessions_metadata_run_decisions_session_key UNIQUE (session_id, id)
);

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_run_decisions_time_idx ON agent_sessions_metadata_run_decisions (decided_at);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_usage (
    id BIGSERIAL NOT NULL,
    session_id VARCHAR COLLATE "C",
    owner_key BYTEA,
    owner_id TEXT,
    day DATE NOT NULL,
    agent VARCHAR(255) COLLATE "C",
    model VARCHAR(255) COLLATE "C",
    item_id BIGINT,
    requests BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    cached_input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    total_tokens BIGINT NOT NULL,
    cost BIGINT,
    PRIMARY KEY (id),
    CONSTRAINT agent_sessions_metadata_usage_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE SET NULL,
    CONSTRAINT agent_sessions_metadata_usage_session_key UNIQUE (session_id, id)
);

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_usage_day_idx ON agent_sessions_metadata_usage (day);

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_usage_owner_idx ON agent_sessions_metadata_usage (owner_key, day);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_thread_items (
    session_id VARCHAR COLLATE "C" NOT NULL,
    item_id VARCHAR(255) COLLATE "C" NOT NULL,
    position BIGINT NOT NULL,
    kind VARCHAR(255) COLLATE "C" NOT NULL,
    data TEXT NOT NULL,
    history_end BIGINT,
    PRIMARY KEY (session_id, item_id),
    CONSTRAINT agent_sessions_metadata_thread_items_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_thread_items_order_idx ON agent_sessions_metadata_thread_items (session_id, position);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_attachments (
    attachment_id VARCHAR(255) COLLATE "C" NOT NULL,
    session_id VARCHAR COLLATE "C",
    owner TEXT NOT NULL,
    data TEXT NOT NULL,
    created_at TIMESTAMP WITHOUT TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (attachment_id),
    CONSTRAINT agent_sessions_metadata_attachments_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE,
    CONSTRAINT agent_sessions_metadata_attachments_session_key UNIQUE (session_id, attachment_id)
);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_feedback (
    session_id VARCHAR COLLATE "C" NOT NULL,
    item_id VARCHAR(255) COLLATE "C" NOT NULL,
    kind VARCHAR(255) COLLATE "C" NOT NULL,
    voted_at BIGINT NOT NULL,
    PRIMARY KEY (session_id, item_id),
    CONSTRAINT agent_sessions_metadata_feedback_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_idempotency (
    session_id VARCHAR COLLATE "C" NOT NULL,
    request_key VARCHAR(255) COLLATE "C" NOT NULL,
    request_hash VARCHAR(64) NOT NULL,
    answer TEXT NOT NULL,
    answered_at BIGINT NOT NULL,
    PRIMARY KEY (session_id, request_key),
    CONSTRAINT agent_sessions_metadata_idempotency_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_text (
    id INTEGER NOT NULL,
    words TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT agent_sessions_metadata_text_item_fk FOREIGN KEY(id) REFERENCES agent_messages (id) ON DELETE CASCADE
);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_text_state (
    id INTEGER NOT NULL,
    native INTEGER NOT NULL,
    filled BIGINT NOT NULL,
    pending BIGINT NOT NULL,
    mark BIGINT NOT NULL,
    PRIMARY KEY (id)
);
