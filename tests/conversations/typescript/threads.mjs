// Every method of the adapter of examples/thread_list.ts. Prints what it gave, as JSON.
import { threadListAdapter } from './thread_list.ts';

const [, , baseURL] = process.argv;
const adapter = threadListAdapter(baseURL, () => ({ 'x-user': 'u1' }));

const { remoteId } = await adapter.initialize('local', { custom: { color: 'red' } });
const made = await adapter.fetch(remoteId);
const message = { role: 'user', content: [{ type: 'text', text: ' Which tram? ' }] };
const stream = await adapter.generateTitle(remoteId, [message]);
const chunks = [];
for await (const chunk of stream) if (chunk.type === 'text-delta') chunks.push(chunk.textDelta);
const titled = (await adapter.fetch(remoteId)).title;
await adapter.rename(remoteId, 'Renamed');
await adapter.archive(remoteId);
await adapter.updateCustom(remoteId, { color: 'blue' });
const archived = await adapter.fetch(remoteId);
await adapter.unarchive(remoteId);
await adapter.generateTitle(remoteId, [message]);
const kept = (await adapter.fetch(remoteId)).title;
await adapter.delete(remoteId);

const pages = [];
let after;
do {
  const page = await adapter.list({ after });
  pages.push(page.threads.length);
  after = page.nextCursor;
} while (after);

let error;
try {
  await adapter.fetch(remoteId);
} catch (caught) {
  error = caught.message;
}
console.log(JSON.stringify({ made, archived, chunks, titled, kept, pages, error }));
