CREATE TABLE IF NOT EXISTS agent_sessions (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (session_id)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_messages (
    id INTEGER NOT NULL AUTO_INCREMENT,
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    message_data LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (id),
    FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE,
    INDEX idx_agent_messages_session_time (session_id, created_at)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    value LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    search_key VARBINARY(512) NOT NULL,
    search_rest LONGBLOB NOT NULL,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (session_id, `key`),
    CONSTRAINT agent_sessions_metadata_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE,
    INDEX agent_sessions_metadata_search_idx (`key`, search_key, session_id)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_elements (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    `position` INTEGER NOT NULL,
    search_key VARBINARY(512) NOT NULL,
    search_rest LONGBLOB NOT NULL,
    PRIMARY KEY (session_id, `key`, `position`),
    CONSTRAINT agent_sessions_metadata_elements_key_fk FOREIGN KEY(session_id, `key`) REFERENCES agent_sessions_metadata (session_id, `key`) ON DELETE CASCADE,
    INDEX agent_sessions_metadata_elements_search_idx (`key`, search_key, session_id)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_indexes (
    `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    state INTEGER NOT NULL,
    token VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    PRIMARY KEY (`key`)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_activity (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    `position` INTEGER NOT NULL,
    of_list INTEGER NOT NULL,
    search_key VARBINARY(512) NOT NULL,
    updated_at DECIMAL(20, 6),
    PRIMARY KEY (session_id, `key`, `position`),
    CONSTRAINT agent_sessions_metadata_activity_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE,
    INDEX agent_sessions_metadata_activity_order_idx (`key`, of_list, search_key, updated_at, session_id)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_runs (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    run_id VARCHAR(32) NOT NULL,
    status VARCHAR(16) NOT NULL,
    token VARCHAR(32) NOT NULL,
    expires BIGINT NOT NULL,
    run_key VARCHAR(64),
    started_at BIGINT NOT NULL,
    paused_at BIGINT,
    agent LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    input LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    state LONGTEXT CHARACTER SET utf8mb4,
    pending LONGTEXT CHARACTER SET utf8mb4,
    error LONGTEXT CHARACTER SET utf8mb4,
    progress LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    last_item BIGINT NOT NULL,
    PRIMARY KEY (session_id),
    CONSTRAINT agent_sessions_metadata_runs_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE,
    INDEX agent_sessions_metadata_runs_order_idx (started_at, session_id)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_run_steps (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    number INTEGER NOT NULL,
    value LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    PRIMARY KEY (session_id, number),
    CONSTRAINT agent_sessions_metadata_run_steps_run_fk FOREIGN KEY(session_id) REFERENCES agent_sessions_metadata_runs (session_id) ON DELETE CASCADE
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_run_keys (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    run_key VARCHAR(64) NOT NULL,
    run_id VARCHAR(32) NOT NULL,
    ended_at BIGINT NOT NULL,
    outcome LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    PRIMARY KEY (session_id, run_key),
    CONSTRAINT agent_sessions_metadata_run_keys_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_run_decisions (
    id BIGINT NOT NULL AUTO_INCREMENT,
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
    run_id VARCHAR(32) NOT NULL,
    call_id LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    tool LONGTEXT CHARACTER SET utf8mb4,
    agent LONGTEXT CHARACTER SET utf8mb4,
    approve BOOL NOT NULL,
    message LONGTEXT CHARACTER SET utf8mb4,
    decided_by LONGTEXT CHARACTER SET utf8mb4,
    decided_at BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT agent_sessions_metadata_run_decisions_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE SET NULL,
    CONSTRAINT agent_sessions_metadata_run_decisions_session_key UNIQUE (session_id, id),
    INDEX agent_sessions_metadata_run_decisions_time_idx (decided_at)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_usage (
    id BIGINT NOT NULL AUTO_INCREMENT,
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
    owner_key VARBINARY(512),
    owner_id LONGTEXT CHARACTER SET utf8mb4,
    day DATE NOT NULL,
    agent VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
    model VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
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
    CONSTRAINT agent_sessions_metadata_usage_session_key UNIQUE (session_id, id),
    INDEX agent_sessions_metadata_usage_day_idx (day),
    INDEX agent_sessions_metadata_usage_owner_idx (owner_key, day)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_thread_items (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    item_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    `position` BIGINT NOT NULL,
    kind VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    data LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    history_end BIGINT,
    PRIMARY KEY (session_id, item_id),
    CONSTRAINT agent_sessions_metadata_thread_items_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE,
    INDEX agent_sessions_metadata_thread_items_order_idx (session_id, `position`)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_attachments (
    attachment_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
    owner LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    data LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (attachment_id),
    CONSTRAINT agent_sessions_metadata_attachments_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE,
    CONSTRAINT agent_sessions_metadata_attachments_session_key UNIQUE (session_id, attachment_id)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_feedback (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    item_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    kind VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    voted_at BIGINT NOT NULL,
    PRIMARY KEY (session_id, item_id),
    CONSTRAINT agent_sessions_metadata_feedback_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_idempotency (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    request_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    request_hash VARCHAR(64) NOT NULL,
    answer LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    answered_at BIGINT NOT NULL,
    PRIMARY KEY (session_id, request_key),
    CONSTRAINT agent_sessions_metadata_idempotency_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_text (
    id INTEGER NOT NULL,
    words MEDIUMBLOB NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT agent_sessions_metadata_text_item_fk FOREIGN KEY(id) REFERENCES agent_messages (id) ON DELETE CASCADE
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_text_state (
    id INTEGER NOT NULL,
    native INTEGER NOT NULL,
    filled BIGINT NOT NULL,
    pending BIGINT NOT NULL,
    mark BIGINT NOT NULL,
    PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;
