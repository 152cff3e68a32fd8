// A conversation is a tree of turns: editing a message or asking again adds a sibling, and nothing is lost.
//
// conversation {id, title, named, created, updated, params, nodes: {id: node}, selected: {parent id or '': child id}}
// node {id, parent: id or null, order, created, role: 'user' | 'assistant' | 'tool', ...}
//   user      text, images: [image id]
//   assistant content, reasoning, toolCalls: [{id, name, arguments}], state, finish, error, usage, timing, model, settings
//   tool      results: [{id, name, content}]
const kRoot = '';

export function newId() {
  return crypto.randomUUID ? crypto.randomUUID() : Array.from(crypto.getRandomValues(new Uint8Array(16)),
    (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export function newConversation(params = {}) {
  const now = Date.now();
  return { id: newId(), title: '', named: false, created: now, updated: now, params: structuredClone(params),
    nodes: {}, selected: {} };
}

// Adds `fields` below `parent` (a node's id or null) and selects it.
export function addNode(conversation, parent, fields) {
  let order = 0;
  for (const node of Object.values(conversation.nodes)) order = Math.max(order, node.order + 1);
  const node = { id: newId(), parent, order, created: Date.now(), ...fields };
  conversation.nodes[node.id] = node;
  conversation.selected[parent ?? kRoot] = node.id;
  conversation.updated = node.created;
  if (!conversation.named && !conversation.title && node.role === 'user') conversation.title = titleOf(node.text);
  return node;
}

export function titleOf(text) {
  const line = text.trim().split('\n', 1)[0].replace(/\s+/g, ' ');
  return line.length > 64 ? `${line.slice(0, 63).trimEnd()}…` : line;
}

function childrenByParent(conversation) {
  const children = new Map();
  for (const node of Object.values(conversation.nodes)) {
    const key = node.parent ?? kRoot;
    if (!children.has(key)) children.set(key, []);
    children.get(key).push(node);
  }
  for (const list of children.values()) list.sort((a, b) => a.order - b.order || (a.id < b.id ? -1 : 1));
  return children;
}

// The selected turns from the first to the last, each with its place among its siblings: [{node, index, count}].
export function selectedPath(conversation) {
  const children = childrenByParent(conversation);
  const path = [];
  const seen = new Set();
  for (let key = kRoot; children.has(key) && !seen.has(key);) {
    seen.add(key);
    const siblings = children.get(key);
    const chosen = siblings.findIndex((node) => node.id === conversation.selected[key]);
    const index = chosen < 0 ? siblings.length - 1 : chosen;
    path.push({ node: siblings[index], index, count: siblings.length });
    key = siblings[index].id;
  }
  return path;
}

// The turns from the first down to `id`, whatever is selected.
export function pathTo(conversation, id) {
  const path = [];
  const seen = new Set();
  for (let node = conversation.nodes[id]; node && !seen.has(node.id); node = conversation.nodes[node.parent]) {
    seen.add(node.id);
    path.unshift(node);
  }
  return path;
}

// Moves the choice among the siblings of `id` by `step`; false at either end.
export function selectSibling(conversation, id, step) {
  const node = conversation.nodes[id];
  const siblings = childrenByParent(conversation).get(node.parent ?? kRoot);
  const next = siblings[siblings.findIndex((one) => one.id === id) + step];
  if (!next) return false;
  conversation.selected[node.parent ?? kRoot] = next.id;
  return true;
}

export function selectNode(conversation, id) {
  for (const node of pathTo(conversation, id)) conversation.selected[node.parent ?? kRoot] = node.id;
}

// A new conversation of the turns down to `id`, without the other branches.
export function forkAt(conversation, id) {
  const fork = newConversation(conversation.params);
  fork.title = conversation.title ? `${conversation.title} (fork)` : '';
  fork.named = conversation.named;
  let parent = null;
  for (const { id: old, parent: _, order: __, created: ___, ...fields } of pathTo(conversation, id)) {
    parent = addNode(fork, parent, structuredClone(fields)).id;
  }
  return fork;
}

const written = (node) => (node.content ?? '').length + (node.reasoning ?? '').length;

// Two versions of one conversation, as two tabs leave them: every turn of both, the newer choice. `mine` wins a tie; of
// an answer that one tab saw unfinished, the longer one stays.
export function mergeConversations(mine, theirs) {
  if (!theirs) return mine;
  const nodes = { ...theirs.nodes, ...mine.nodes };
  for (const [id, node] of Object.entries(theirs.nodes)) if (written(node) > written(nodes[id])) nodes[id] = node;
  const newer = theirs.updated > mine.updated ? theirs : mine;
  return { ...newer, nodes, selected: { ...(newer === mine ? theirs : mine).selected, ...newer.selected } };
}

// All the text that a search looks at.
export function searchText(conversation) {
  const parts = [conversation.title];
  for (const node of Object.values(conversation.nodes)) {
    parts.push(node.text ?? '', node.content ?? '', ...(node.results ?? []).map((result) => result.content),
      ...(node.toolCalls ?? []).map((call) => `${call.name} ${call.arguments}`));
  }
  return parts.join('\n');
}
