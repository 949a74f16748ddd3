CREATE TABLE IF NOT EXISTS agent_sessions_metadata_indexes (
    key VARCHAR(255) COLLATE "C" NOT NULL,
    state INTEGER NOT NULL,
    token VARCHAR(255) COLLATE "C" NOT NULL,
    PRIMARY KEY (key)
)

CREATE TABLE IF NOT EXISTS agent_sessions_metadata_activity (
    session_id VARCHAR COLLATE "C" NOT NULL,
    key VARCHAR(255) COLLATE "C" NOT NULL,
    position INTEGER NOT NULL,
    of_list INTEGER NOT NULL,
    search_key BYTEA NOT NULL,
    updated_at TIMESTAMP WITHOUT TIME ZONE,
    PRIMARY KEY (session_id, key, position),
    CONSTRAINT agent_sessions_metadata_activity_session_fk FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
)

CREATE INDEX IF NOT EXISTS agent_sessions_metadata_activity_order_idx ON agent_sessions_metadata_activity (key, of_list, search_key, updated_at, session_id COLLATE "C")

CREATE OR REPLACE FUNCTION public.agent_sessions_metadata_activity_session_time() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$ BEGIN UPDATE public.agent_sessions_metadata_activity SET updated_at = NEW.updated_at WHERE session_id = NEW.session_id; RETURN NULL; END $body$

REVOKE ALL ON FUNCTION public.agent_sessions_metadata_activity_session_time() FROM PUBLIC

CREATE TRIGGER agent_sessions_metadata_activity_session_time AFTER UPDATE ON public.agent_sessions FOR EACH ROW WHEN (OLD.updated_at IS DISTINCT FROM NEW.updated_at) EXECUTE FUNCTION public.agent_sessions_metadata_activity_session_time()

CREATE OR REPLACE FUNCTION public.agent_sessions_metadata_activity_value_insert() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$ BEGIN INSERT INTO public.agent_sessions_metadata_activity (session_id, key, position, of_list, search_key, updated_at) SELECT NEW.session_id, NEW.key, -1, 0, NEW.search_key, s.updated_at FROM public.agent_sessions s WHERE s.session_id = NEW.session_id AND NEW.key IN ('owner_id', 'tags') FOR SHARE OF s ON CONFLICT (session_id, key, position) DO UPDATE SET of_list = EXCLUDED.of_list, search_key = EXCLUDED.search_key, updated_at = EXCLUDED.updated_at; RETURN NULL; END $body$

REVOKE ALL ON FUNCTION public.agent_sessions_metadata_activity_value_insert() FROM PUBLIC

CREATE TRIGGER agent_sessions_metadata_activity_value_insert AFTER INSERT ON public.agent_sessions_metadata FOR EACH ROW EXECUTE FUNCTION public.agent_sessions_metadata_activity_value_insert()

CREATE OR REPLACE FUNCTION public.agent_sessions_metadata_activity_value_update() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$ BEGIN DELETE FROM public.agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND key = OLD.key AND position = -1; INSERT INTO public.agent_sessions_metadata_activity (session_id, key, position, of_list, search_key, updated_at) SELECT NEW.session_id, NEW.key, -1, 0, NEW.search_key, s.updated_at FROM public.agent_sessions s WHERE s.session_id = NEW.session_id AND NEW.key IN ('owner_id', 'tags') FOR SHARE OF s ON CONFLICT (session_id, key, position) DO UPDATE SET of_list = EXCLUDED.of_list, search_key = EXCLUDED.search_key, updated_at = EXCLUDED.updated_at; RETURN NULL; END $body$

REVOKE ALL ON FUNCTION public.agent_sessions_metadata_activity_value_update() FROM PUBLIC

CREATE TRIGGER agent_sessions_metadata_activity_value_update AFTER UPDATE ON public.agent_sessions_metadata FOR EACH ROW WHEN (OLD.session_id IS DISTINCT FROM NEW.session_id OR OLD.key IS DISTINCT FROM NEW.key OR OLD.search_key IS DISTINCT FROM NEW.search_key) EXECUTE FUNCTION public.agent_sessions_metadata_activity_value_update()

CREATE OR REPLACE FUNCTION public.agent_sessions_metadata_activity_value_delete() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$ BEGIN DELETE FROM public.agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND key = OLD.key; RETURN NULL; END $body$

REVOKE ALL ON FUNCTION public.agent_sessions_metadata_activity_value_delete() FROM PUBLIC

CREATE TRIGGER agent_sessions_metadata_activity_value_delete AFTER DELETE ON public.agent_sessions_metadata FOR EACH ROW EXECUTE FUNCTION public.agent_sessions_metadata_activity_value_delete()

CREATE OR REPLACE FUNCTION public.agent_sessions_metadata_activity_element_insert() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$ BEGIN INSERT INTO public.agent_sessions_metadata_activity (session_id, key, position, of_list, search_key, updated_at) SELECT NEW.session_id, NEW.key, NEW.position, 1, NEW.search_key, s.updated_at FROM public.agent_sessions s WHERE s.session_id = NEW.session_id AND NEW.key IN ('owner_id', 'tags') FOR SHARE OF s ON CONFLICT (session_id, key, position) DO UPDATE SET of_list = EXCLUDED.of_list, search_key = EXCLUDED.search_key, updated_at = EXCLUDED.updated_at; RETURN NULL; END $body$

REVOKE ALL ON FUNCTION public.agent_sessions_metadata_activity_element_insert() FROM PUBLIC

CREATE TRIGGER agent_sessions_metadata_activity_element_insert AFTER INSERT ON public.agent_sessions_metadata_elements FOR EACH ROW EXECUTE FUNCTION public.agent_sessions_metadata_activity_element_insert()

CREATE OR REPLACE FUNCTION public.agent_sessions_metadata_activity_element_update() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$ BEGIN DELETE FROM public.agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND key = OLD.key AND position = OLD.position; INSERT INTO public.agent_sessions_metadata_activity (session_id, key, position, of_list, search_key, updated_at) SELECT NEW.session_id, NEW.key, NEW.position, 1, NEW.search_key, s.updated_at FROM public.agent_sessions s WHERE s.session_id = NEW.session_id AND NEW.key IN ('owner_id', 'tags') FOR SHARE OF s ON CONFLICT (session_id, key, position) DO UPDATE SET of_list = EXCLUDED.of_list, search_key = EXCLUDED.search_key, updated_at = EXCLUDED.updated_at; RETURN NULL; END $body$

REVOKE ALL ON FUNCTION public.agent_sessions_metadata_activity_element_update() FROM PUBLIC

CREATE TRIGGER agent_sessions_metadata_activity_element_update AFTER UPDATE ON public.agent_sessions_metadata_elements FOR EACH ROW WHEN (OLD.session_id IS DISTINCT FROM NEW.session_id OR OLD.key IS DISTINCT FROM NEW.key OR OLD.search_key IS DISTINCT FROM NEW.search_key OR OLD.position IS DISTINCT FROM NEW.position) EXECUTE FUNCTION public.agent_sessions_metadata_activity_element_update()

CREATE OR REPLACE FUNCTION public.agent_sessions_metadata_activity_element_delete() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$ BEGIN DELETE FROM public.agent_sessions_metadata_activity WHERE session_id = OLD.session_id AND key = OLD.key AND position = OLD.position; RETURN NULL; END $body$

REVOKE ALL ON FUNCTION public.agent_sessions_metadata_activity_element_delete() FROM PUBLIC

CREATE TRIGGER agent_sessions_metadata_activity_element_delete AFTER DELETE ON public.agent_sessions_metadata_elements FOR EACH ROW EXECUTE FUNCTION public.agent_sessions_metadata_activity_element_delete()
