// The SDK for TypeScript and its session class, unchanged. Prints what it read, as JSON.
import { Agent, OpenAIConversationsSession, run, setTracingDisabled, tool, Usage } from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';

setTracingDisabled(true);
const [, , baseURL, given] = process.argv;
const client = new OpenAI({ baseURL, apiKey: 'none', defaultHeaders: { 'x-user': 'u1' } });

function say(text) {
  const content = [{ type: 'output_text', text }];
  return [{ type: 'message', role: 'assistant', status: 'completed', content }];
}

// A model that answers with these items, one list per call.
class ScriptedModel {
  calls = [];
  constructor(...answers) {
    this.answers = answers;
  }
  async getResponse(request) {
    this.calls.push(request.input.length);
    return { usage: new Usage(), output: this.answers.shift() };
  }
}

const weather = tool({
  name: 'weather',
  description: 'The weather in a city.',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});
const call = {
  type: 'function_call',
  callId: 'call_1',
  name: 'weather',
  arguments: '{"city":"Oslo"}',
  status: 'completed',
};

const model = new ScriptedModel([call], say('Sunny.'), say('Yes.'));
const agent = new Agent({ name: 'assistant', model, tools: [weather] });
const session = new OpenAIConversationsSession({ client, conversationId: given });
const before = await session.getItems();
await run(agent, 'Oslo?', { session });
await run(agent, 'Really?', { session });
const items = await session.getItems();
const newest = await session.getItems(2);
await session.addItems([{ type: 'message', role: 'user', content: 'gone' }]);
const popped = await session.popItem();

const other = new OpenAIConversationsSession({ client });
const many = Array.from({ length: 15 }, (_, n) => ({
  type: 'message',
  role: 'user',
  content: String(n),
}));
await other.addItems(many);
await other.addItems(many);
const pages = (await other.getItems()).length;
await other.clearSession();

let error;
try {
  await client.conversations.retrieve('nope');
} catch (caught) {
  error = [caught.constructor.name, caught.status, caught.type];
}
console.log(JSON.stringify({ before, items, newest, popped, pages, error, calls: model.calls }));
