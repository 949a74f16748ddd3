// The thread list of assistant-ui, stored by the routes of `sessions_app`.
import type { RemoteThreadListAdapter } from "@assistant-ui/react";
import { createAssistantStream } from "assistant-stream";

type Conversation = {
  id: string;
  updated_at: number;
  preview?: string | null;
  metadata: { title?: string; archived?: boolean; custom?: Record<string, unknown> };
};

type Headers = () => Record<string, string> | Promise<Record<string, string>>;

/**
 * @param baseURL - The path at which the application is mounted, such as `/v1`.
 * @param headers - Returns the headers that your backend's authentication requires.
 */
export function threadListAdapter(
  baseURL: string,
  headers: Headers = () => ({}),
): RemoteThreadListAdapter {
  async function call(method: string, path: string, body?: unknown) {
    const response = await fetch(baseURL + path, {
      method,
      headers: { "content-type": "application/json", ...(await headers()) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error.message);
    return answer;
  }

  const path = (id: string) => `/conversations/${encodeURIComponent(id)}`;
  const change = async (id: string, metadata: Record<string, unknown>) => {
    await call("POST", path(id), { metadata });
  };
  const shown = (chat: Conversation) => ({
    remoteId: chat.id,
    status: chat.metadata.archived ? ("archived" as const) : ("regular" as const),
    title: chat.metadata.title ?? chat.preview ?? undefined,
    lastMessageAt: new Date(chat.updated_at * 1000),
    custom: chat.metadata.custom,
  });

  return {
    async list(params) {
      const query = new URLSearchParams({ limit: "50", preview: "true" });
      if (params?.after) query.set("after", params.after);
      const page = await call("GET", `/conversations?${query}`);
      return {
        threads: page.data.map(shown),
        nextCursor: page.has_more ? page.last_id : undefined,
      };
    },
    async initialize(_threadId, options) {
      const metadata = options?.custom ? { custom: options.custom } : {};
      const chat = await call("POST", "/conversations", { metadata });
      return { remoteId: chat.id, externalId: undefined };
    },
    fetch: async (id) => shown(await call("GET", path(id))),
    rename: (id, title) => change(id, { title }),
    updateCustom: (id, custom) => change(id, { custom: custom ?? null }),
    archive: (id) => change(id, { archived: true }),
    unarchive: (id) => change(id, { archived: null }),
    async delete(id) {
      await call("DELETE", path(id));
    },
    async generateTitle(id, messages) {
      const parts = messages.find((message) => message.role === "user")?.content ?? [];
      const text = parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join(" ");
      // The user can have renamed the thread before its first answer ends.
      const stored = (await call("GET", path(id))).metadata.title;
      const title = stored ?? (text.trim().slice(0, 60) || "New chat");
      if (stored === undefined) await change(id, { title });
      return createAssistantStream((controller) => controller.appendText(title));
    },
  };
}
