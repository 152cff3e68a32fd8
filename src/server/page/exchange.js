// Conversations as a file, and back. What is imported is checked field by field: a file may come from anyone.
import { count, h } from './dom.js';
import { allConversations, loadConversation, loadImage, saveConversation, saveImage } from './store.js';
import { newConversation, newId } from './tree.js';

const kFormat = 'mini-deepinfer-conversations';
const kRoles = ['user', 'assistant', 'tool'];
const kStates = ['done', 'stopped', 'error', 'interrupted'];

// Hands the conversations of `ids` (all, if absent) to the browser as a download.
export async function exportConversations(ids) {
  const conversations = ids ? await Promise.all(ids.map(loadConversation)) : await allConversations();
  if (conversations.length === 0) throw new Error('There is nothing to export yet.');
  const used = new Set(conversations.flatMap(({ nodes }) => Object.values(nodes).flatMap((node) => node.images ?? [])));
  const images = (await Promise.all([...used].map(loadImage))).filter(Boolean);
  const text = JSON.stringify({ format: kFormat, version: 1, exported: new Date().toISOString(), conversations, images }, null, 1);
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  const name = ids?.length === 1 ? (conversations[0].title || 'conversation').replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 40) : 'conversations';
  const link = h('a', { href: url, download: `${name}-${new Date().toISOString().slice(0, 10)}.json` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
  return `${count(conversations.length, 'conversation')} exported.`;
}

export async function importConversations(file) {
  let parsed;
  try {
    parsed = JSON.parse(await file.text());
  } catch (error) {
    throw new Error(`${file.name} is not JSON: ${error.message}`);
  }
  const { conversations, images } = checkImport(parsed, file.name);
  for (const image of images) await saveImage(image);
  for (const conversation of conversations) await saveConversation(conversation);
  return `${count(conversations.length, 'conversation')} imported.`;
}

const text = (value) => (typeof value === 'string' ? value : '');
const time = (value) => (Number.isFinite(value) && value > 0 ? value : Date.now());
const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const plain = (value) => (isObject(value) ? JSON.parse(JSON.stringify(value)) : {});

// {conversations, images} out of a parsed file, with ids of their own so that nothing here is overwritten. Throws an
// Error that says what is wrong.
export function checkImport(parsed, name) {
  if (parsed?.format !== kFormat || parsed.version !== 1 || !Array.isArray(parsed.conversations)) {
    throw new Error(`${name} is not an export of this page.`);
  }
  const imageIds = new Map();
  const images = [];
  for (const image of Array.isArray(parsed.images) ? parsed.images : []) {
    if (!/^data:image\/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+$/.test(text(image?.url))) throw new Error(`${name} has an image that is not PNG, JPEG or WebP.`);
    const id = newId();
    imageIds.set(image.id, id);
    images.push({ id, name: text(image.name), type: text(image.type), width: Number(image.width) || 0, height: Number(image.height) || 0, url: image.url });
  }
  return { conversations: parsed.conversations.map((one, i) => checkConversation(one, `${name}, conversation ${i + 1}`, imageIds)), images };
}

function checkConversation(given, where, imageIds) {
  if (!isObject(given?.nodes)) throw new Error(`${where}: no turns.`);
  const conversation = { ...newConversation(plain(given.params)), title: text(given.title).slice(0, 200), named: given.named === true,
    created: time(given.created), updated: time(given.updated) };
  const ids = new Map(Object.keys(given.nodes).map((id) => [id, newId()]));
  for (const [old, node] of Object.entries(given.nodes)) {
    if (!isObject(node) || !kRoles.includes(node.role)) throw new Error(`${where}: a turn without a known role.`);
    if (node.parent !== null && !ids.has(node.parent)) throw new Error(`${where}: a turn whose parent is missing.`);
    const id = ids.get(old);
    const common = { id, parent: node.parent === null ? null : ids.get(node.parent), order: Number(node.order) || 0, created: time(node.created), role: node.role };
    conversation.nodes[id] = { ...common, ...fieldsOf(node, imageIds) };
  }
  for (const [parent, child] of Object.entries(plain(given.selected))) {
    if (ids.has(child)) conversation.selected[ids.get(parent) ?? ''] = ids.get(child);
  }
  return conversation;
}

function fieldsOf(node, imageIds) {
  const list = (value) => (Array.isArray(value) ? value.filter(isObject) : []);
  if (node.role === 'user') {
    return { text: text(node.text), images: (Array.isArray(node.images) ? node.images : []).map((id) => imageIds.get(id)).filter(Boolean) };
  }
  if (node.role === 'tool') return { results: list(node.results).map(({ id, name, content }) => ({ id: text(id), name: text(name), content: text(content) })) };
  const timing = plain(node.timing);
  const clock = Object.fromEntries(['sent', 'first', 'thinkingFrom', 'thinkingTo', 'last', 'end', 'pieces'].map((field) => [field, Number(timing[field]) || 0]));
  return { content: text(node.content), reasoning: text(node.reasoning),
    toolCalls: list(node.toolCalls).map((call) => ({ id: text(call.id), name: text(call.name), arguments: text(call.arguments) })),
    state: kStates.includes(node.state) ? node.state : 'interrupted', finish: text(node.finish) || null,
    error: isObject(node.error) ? { message: text(node.error.message), status: Number(node.error.status) || null, param: text(node.error.param) || null, code: text(node.error.code) || null, retryAfter: null } : null,
    usage: isObject(node.usage) ? plainUsage(node.usage) : null, model: text(node.model), settings: plain(node.settings), timing: clock };
}

function plainUsage(usage) {
  const whole = (value) => (Number.isFinite(value) ? value : 0);
  return { prompt_tokens: whole(usage.prompt_tokens), completion_tokens: whole(usage.completion_tokens),
    prompt_tokens_details: { cached_tokens: whole(usage.prompt_tokens_details?.cached_tokens) },
    completion_tokens_details: { reasoning_tokens: whole(usage.completion_tokens_details?.reasoning_tokens) } };
}
