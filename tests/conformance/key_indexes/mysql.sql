CREATE TABLE IF NOT EXISTS agent_sessions_metadata_indexes (
    `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL,
    state INTEGER NOT NULL,
    token VARCHAR(255) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL,
    PRIMARY KEY (`key`)
)ENGINE=InnoDB CHARSET=utf8mb4

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_activity (
    session_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL,
    `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL,
    `position` INTEGER NOT NULL,
    of_list INTEGER NOT NULL,
    search_key VARBINARY(512) NOT NULL,
    updated_at DECIMAL(20, 6),
    PRIMARY KEY (session_id, `key`, `position`),
    CONSTRAINT agent_sessions_metadata_activity_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE,
    INDEX agent_sessions_metadata_activity_order_idx (`key`, of_list, search_key, updated_at, session_id)
)ENGINE=InnoDB CHARSET=utf8mb4

CREATE TRIGGER agent_sessions_metadata_activity_session_time AFTER UPDATE ON agent_sessions FOR EACH ROW BEGIN IF NOT (UNIX_TIMESTAMP(OLD.updated_at) <=> UNIX_TIMESTAMP(NEW.updated_at)) THEN UPDATE agent_sessions_metadata_activity SET updated_at = UNIX_TIMESTAMP(NEW.updated_at) WHERE session_id = NEW.session_id; END IF; END

CREATE TRIGGER agent_sessions_metadata_activity_value_insert AFTER INSERT ON agent_sessions_metadata FOR EACH ROW BEGIN INSERT INTO agent_sessions_metadata_activity (session_id, `key`, `position`, of_list, search_key, updated_at) SELECT NEW.session_id, NEW.`key`, -1, 0, NEW.search_key, UNIX_TIMESTAMP(s.updated_at) FROM agent_sessions s, agent_sessions_metadata_indexes i WHERE s.session_id = NEW.session_id AND i.`key` = NEW.`key` AND i.state < 2 LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE of_list = 0, search_key = NEW.search_key, updated_at = UNIX_TIMESTAMP(s.updated_at); END

CREATE TRIGGER agent_sessions_metadata_activity_value_update AFTER UPDATE ON agent_sessions_metadata FOR EACH ROW BEGIN IF NOT (OLD.session_id <=> NEW.session_id) OR NOT (OLD.`key` <=> NEW.`key`) OR NOT (OLD.search_key <=> NEW.search_key) THEN DELETE FROM agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND `key` = OLD.`key` AND `position` = -1; INSERT INTO agent_sessions_metadata_activity (session_id, `key`, `position`, of_list, search_key, updated_at) SELECT NEW.session_id, NEW.`key`, -1, 0, NEW.search_key, UNIX_TIMESTAMP(s.updated_at) FROM agent_sessions s, agent_sessions_metadata_indexes i WHERE s.session_id = NEW.session_id AND i.`key` = NEW.`key` AND i.state < 2 LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE of_list = 0, search_key = NEW.search_key, updated_at = UNIX_TIMESTAMP(s.updated_at); END IF; END

CREATE TRIGGER agent_sessions_metadata_activity_value_delete AFTER DELETE ON agent_sessions_metadata FOR EACH ROW BEGIN DELETE FROM agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND `key` = OLD.`key`; END

CREATE TRIGGER agent_sessions_metadata_activity_element_insert AFTER INSERT ON agent_sessions_metadata_elements FOR EACH ROW BEGIN INSERT INTO agent_sessions_metadata_activity (session_id, `key`, `position`, of_list, search_key, updated_at) SELECT NEW.session_id, NEW.`key`, NEW.position, 1, NEW.search_key, UNIX_TIMESTAMP(s.updated_at) FROM agent_sessions s, agent_sessions_metadata_indexes i WHERE s.session_id = NEW.session_id AND i.`key` = NEW.`key` AND i.state < 2 LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE of_list = 1, search_key = NEW.search_key, updated_at = UNIX_TIMESTAMP(s.updated_at); END

CREATE TRIGGER agent_sessions_metadata_activity_element_update AFTER UPDATE ON agent_sessions_metadata_elements FOR EACH ROW BEGIN IF NOT (OLD.session_id <=> NEW.session_id) OR NOT (OLD.`key` <=> NEW.`key`) OR NOT (OLD.search_key <=> NEW.search_key) OR NOT (OLD.position <=> NEW.position) THEN DELETE FROM agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND `key` = OLD.`key` AND `position` = OLD.position; INSERT INTO agent_sessions_metadata_activity (session_id, `key`, `position`, of_list, search_key, updated_at) SELECT NEW.session_id, NEW.`key`, NEW.position, 1, NEW.search_key, UNIX_TIMESTAMP(s.updated_at) FROM agent_sessions s, agent_sessions_metadata_indexes i WHERE s.session_id = NEW.session_id AND i.`key` = NEW.`key` AND i.state < 2 LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE of_list = 1, search_key = NEW.search_key, updated_at = UNIX_TIMESTAMP(s.updated_at); END IF; END

CREATE TRIGGER agent_sessions_metadata_activity_element_delete AFTER DELETE ON agent_sessions_metadata_elements FOR EACH ROW BEGIN DELETE FROM agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND `key` = OLD.`key` AND `position` = OLD.position; END
