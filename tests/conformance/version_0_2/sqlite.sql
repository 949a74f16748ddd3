CREATE TABLE IF NOT EXISTS agent_sessions (
    session_id VARCHAR NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (session_id)
);

CREATE TABLE IF NOT EXISTS agent_messages (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    session_id VARCHAR NOT NULL,
    message_data TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,
    FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS idx_agent_messages_session_time ON agent_messages (session_id, created_at);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata (
    session_id VARCHAR NOT NULL,
    "key" VARCHAR(255) NOT NULL,
    value TEXT NOT NULL,
    search_key BLOB NOT NULL,
    search_rest BLOB NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (session_id, "key"),
    CONSTRAINT agent_sessions_metadata_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_search_idx ON agent_sessions_metadata ("key", search_key, session_id);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_elements (
    session_id VARCHAR NOT NULL,
    "key" VARCHAR(255) NOT NULL,
    position INTEGER NOT NULL,
    search_key BLOB NOT NULL,
    search_rest BLOB NOT NULL,
    PRIMARY KEY (session_id, "key", position),
    CONSTRAINT agent_sessions_metadata_elements_key_fk FOREIGN KEY(session_id, "key") REFERENCES agent_sessions_metadata (session_id, "key") ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_elements_search_idx ON agent_sessions_metadata_elements ("key", search_key, session_id);

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_after_delete_30c40a88 AFTER DELETE ON "agent_sessions" BEGIN DELETE FROM "agent_sessions_metadata" WHERE "session_id" = OLD."session_id"; END;

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_elements_after_delete_01de3220 AFTER DELETE ON "agent_sessions_metadata" BEGIN DELETE FROM "agent_sessions_metadata_elements" WHERE "session_id" = OLD."session_id" AND "key" = OLD."key"; END;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_indexes (
    "key" VARCHAR(255) NOT NULL,
    state INTEGER NOT NULL,
    token VARCHAR(255) NOT NULL,
    PRIMARY KEY ("key")
)
 WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_activity (
    session_id VARCHAR NOT NULL,
    "key" VARCHAR(255) NOT NULL,
    position INTEGER NOT NULL,
    of_list INTEGER NOT NULL,
    search_key BLOB NOT NULL,
    updated_at TIMESTAMP,
    PRIMARY KEY (session_id, "key", position),
    CONSTRAINT agent_sessions_metadata_activity_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_activity_order_idx ON agent_sessions_metadata_activity ("key", of_list, search_key, updated_at, session_id);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_runs (
    session_id VARCHAR NOT NULL,
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
    session_id VARCHAR NOT NULL,
    number INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (session_id, number),
    CONSTRAINT agent_sessions_metadata_run_steps_run_fk FOREIGN KEY(session_id) REFERENCES agent_sessions_metadata_runs (session_id) ON DELETE CASCADE
);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_run_keys (
    session_id VARCHAR NOT NULL,
    run_key VARCHAR(64) NOT NULL,
    run_id VARCHAR(32) NOT NULL,
    ended_at BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    PRIMARY KEY (session_id, run_key),
    CONSTRAINT agent_sessions_metadata_run_keys_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_run_decisions (
    id INTEGER NOT NULL,
    session_id VARCHAR,
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

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_runs_after_delete_457839c0 AFTER DELETE ON "agent_sessions" BEGIN DELETE FROM "agent_sessions_metadata_runs" WHERE "session_id" = OLD."session_id"; END;

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_run_steps_after_delete_21e39cf2 AFTER DELETE ON "agent_sessions_metadata_runs" BEGIN DELETE FROM "agent_sessions_metadata_run_steps" WHERE "session_id" = OLD."session_id"; END;

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_run_keys_after_delete_4402d9d0 AFTER DELETE ON "agent_sessions" BEGIN DELETE FROM "agent_sessions_metadata_run_keys" WHERE "session_id" = OLD."session_id"; END;

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_run_decisions_after_delete_d5207ffe AFTER DELETE ON "agent_sessions" BEGIN UPDATE "agent_sessions_metadata_run_decisions" SET "session_id" = NULL WHERE "session_id" = OLD."session_id"; END;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_usage (
    id INTEGER NOT NULL,
    session_id VARCHAR,
    owner_key BLOB,
    owner_id TEXT,
    day DATE NOT NULL,
    agent VARCHAR(255),
    model VARCHAR(255),
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

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_usage_after_delete_19f419a5 AFTER DELETE ON "agent_sessions" BEGIN UPDATE "agent_sessions_metadata_usage" SET "session_id" = NULL WHERE "session_id" = OLD."session_id"; END;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_thread_items (
    session_id VARCHAR NOT NULL,
    item_id VARCHAR(255) NOT NULL,
    position BIGINT NOT NULL,
    kind VARCHAR(255) NOT NULL,
    data TEXT NOT NULL,
    history_end BIGINT,
    PRIMARY KEY (session_id, item_id),
    CONSTRAINT agent_sessions_metadata_thread_items_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_thread_items_order_idx ON agent_sessions_metadata_thread_items (session_id, position);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_attachments (
    attachment_id VARCHAR(255) NOT NULL,
    session_id VARCHAR,
    owner TEXT NOT NULL,
    data TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (attachment_id),
    CONSTRAINT agent_sessions_metadata_attachments_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE,
    CONSTRAINT agent_sessions_metadata_attachments_session_key UNIQUE (session_id, attachment_id)
);

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_feedback (
    session_id VARCHAR NOT NULL,
    item_id VARCHAR(255) NOT NULL,
    kind VARCHAR(255) NOT NULL,
    voted_at BIGINT NOT NULL,
    PRIMARY KEY (session_id, item_id),
    CONSTRAINT agent_sessions_metadata_feedback_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_thread_items_after_delete_c354889d AFTER DELETE ON "agent_sessions" BEGIN DELETE FROM "agent_sessions_metadata_thread_items" WHERE "session_id" = OLD."session_id"; END;

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_attachments_after_delete_2ea1f6eb AFTER DELETE ON "agent_sessions" BEGIN DELETE FROM "agent_sessions_metadata_attachments" WHERE "session_id" = OLD."session_id"; END;

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_feedback_after_delete_aa251a54 AFTER DELETE ON "agent_sessions" BEGIN DELETE FROM "agent_sessions_metadata_feedback" WHERE "session_id" = OLD."session_id"; END;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_idempotency (
    session_id VARCHAR NOT NULL,
    request_key VARCHAR(255) NOT NULL,
    request_hash VARCHAR(64) NOT NULL,
    answer TEXT NOT NULL,
    answered_at BIGINT NOT NULL,
    PRIMARY KEY (session_id, request_key),
    CONSTRAINT agent_sessions_metadata_idempotency_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_idempotency_after_delete_67df8b6e AFTER DELETE ON "agent_sessions" BEGIN DELETE FROM "agent_sessions_metadata_idempotency" WHERE "session_id" = OLD."session_id"; END;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_text (
    id INTEGER NOT NULL,
    words TEXT NOT NULL,
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

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_text_after_delete_a584888a AFTER DELETE ON "agent_messages" BEGIN DELETE FROM "agent_sessions_metadata_text" WHERE "id" = OLD."id"; END;
