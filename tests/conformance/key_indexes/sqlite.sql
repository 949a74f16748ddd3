CREATE TABLE IF NOT EXISTS agent_sessions_metadata_indexes (
    "key" VARCHAR(255) NOT NULL,
    state INTEGER NOT NULL,
    token VARCHAR(255) NOT NULL,
    PRIMARY KEY ("key")
)
 WITHOUT ROWID

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
 WITHOUT ROWID

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_activity_order_idx ON agent_sessions_metadata_activity ("key", of_list, search_key, updated_at, session_id)

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_activity_session_time AFTER UPDATE ON agent_sessions FOR EACH ROW WHEN OLD.updated_at IS NOT NEW.updated_at BEGIN UPDATE agent_sessions_metadata_activity SET updated_at = NEW.updated_at WHERE session_id = NEW.session_id; END

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_activity_value_insert AFTER INSERT ON agent_sessions_metadata FOR EACH ROW BEGIN DELETE FROM agent_sessions_metadata_activity WHERE session_id = NEW.session_id AND "key" = NEW."key" AND position = -1; INSERT INTO agent_sessions_metadata_activity (session_id, "key", position, of_list, search_key, updated_at) SELECT NEW.session_id, NEW."key", -1, 0, NEW.search_key, s.updated_at FROM agent_sessions s, agent_sessions_metadata_indexes i WHERE s.session_id = NEW.session_id AND i."key" = NEW."key" AND i.state < 2; END

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_activity_value_update AFTER UPDATE ON agent_sessions_metadata FOR EACH ROW WHEN OLD.session_id IS NOT NEW.session_id OR OLD."key" IS NOT NEW."key" OR OLD.search_key IS NOT NEW.search_key BEGIN DELETE FROM agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND "key" = OLD."key" AND position = -1; INSERT INTO agent_sessions_metadata_activity (session_id, "key", position, of_list, search_key, updated_at) SELECT NEW.session_id, NEW."key", -1, 0, NEW.search_key, s.updated_at FROM agent_sessions s, agent_sessions_metadata_indexes i WHERE s.session_id = NEW.session_id AND i."key" = NEW."key" AND i.state < 2; END

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_activity_value_delete AFTER DELETE ON agent_sessions_metadata FOR EACH ROW BEGIN DELETE FROM agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND "key" = OLD."key"; END

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_activity_element_insert AFTER INSERT ON agent_sessions_metadata_elements FOR EACH ROW BEGIN DELETE FROM agent_sessions_metadata_activity WHERE session_id = NEW.session_id AND "key" = NEW."key" AND position = NEW.position; INSERT INTO agent_sessions_metadata_activity (session_id, "key", position, of_list, search_key, updated_at) SELECT NEW.session_id, NEW."key", NEW.position, 1, NEW.search_key, s.updated_at FROM agent_sessions s, agent_sessions_metadata_indexes i WHERE s.session_id = NEW.session_id AND i."key" = NEW."key" AND i.state < 2; END

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_activity_element_update AFTER UPDATE ON agent_sessions_metadata_elements FOR EACH ROW WHEN OLD.session_id IS NOT NEW.session_id OR OLD."key" IS NOT NEW."key" OR OLD.search_key IS NOT NEW.search_key OR OLD.position IS NOT NEW.position BEGIN DELETE FROM agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND "key" = OLD."key" AND position = OLD.position; INSERT INTO agent_sessions_metadata_activity (session_id, "key", position, of_list, search_key, updated_at) SELECT NEW.session_id, NEW."key", NEW.position, 1, NEW.search_key, s.updated_at FROM agent_sessions s, agent_sessions_metadata_indexes i WHERE s.session_id = NEW.session_id AND i."key" = NEW."key" AND i.state < 2; END

CREATE TRIGGER IF NOT EXISTS agent_sessions_metadata_activity_element_delete AFTER DELETE ON agent_sessions_metadata_elements FOR EACH ROW BEGIN DELETE FROM agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND "key" = OLD."key" AND position = OLD.position; END
