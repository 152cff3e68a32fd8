const tree = await import('/page/tree.js');
const request = await import('/page/request.js');
const answer = await import('/page/answer.js');
const { checkImport } = await import('/page/exchange.js');

const user = (text) => ({ role: 'user', text, images: [] });
const reply = (content, more = {}) => ({ ...answer.emptyAnswer('m'), content, state: 'done', ...more });
const shown = (conversation) => tree.selectedPath(conversation).map(({ node, index, count }) => `${node.text ?? node.content} ${index + 1}/${count}`);

test('branches', () => {
  const c = tree.newConversation();
  const a = tree.addNode(c, null, user('a'));
  const b = tree.addNode(c, a.id, reply('b'));
  tree.addNode(c, b.id, user('c'));
  equal(shown(c), ['a 1/1', 'b 1/1', 'c 1/1']);
  const again = tree.addNode(c, a.id, reply('B'));
  equal(shown(c), ['a 1/1', 'B 2/2']);
  ok(tree.selectSibling(c, again.id, -1), 'no step back');
  equal(shown(c), ['a 1/1', 'b 1/2', 'c 1/1'], 'what hangs below comes with it');
  ok(!tree.selectSibling(c, b.id, -1), 'a step before the first');
  tree.addNode(c, null, user('A'));
  equal(shown(c), ['A 2/2']);
  equal(c.title, 'a');
});

test('a fork has its path and nothing else', () => {
  const c = tree.newConversation({ system: 's' });
  const a = tree.addNode(c, null, user('a'));
  tree.addNode(c, a.id, reply('b'));
  const d = tree.addNode(c, a.id, reply('d'));
  const f = tree.forkAt(c, d.id);
  equal(shown(f), ['a 1/1', 'd 1/1']);
  ok(f.id !== c.id && Object.keys(f.nodes).every((id) => !(id in c.nodes)), 'ids are shared');
  equal(f.params, { system: 's' });
});

test('two tabs lose nothing', () => {
  const c = tree.newConversation();
  const a = tree.addNode(c, null, user('a'));
  const half = tree.addNode(c, a.id, reply('hal', { state: 'interrupted' }));
  const other = structuredClone(c);
  other.nodes[half.id].content = 'half and more';
  tree.addNode(other, a.id, reply('theirs'));
  tree.addNode(c, a.id, reply('mine'));
  const merged = tree.mergeConversations(c, other);
  equal(Object.values(merged.nodes).map((node) => node.text ?? node.content).sort(), ['a', 'half and more', 'mine', 'theirs']);
});

test('a broken tree still ends', () => {
  const c = tree.newConversation();
  const a = tree.addNode(c, null, user('a'));
  const b = tree.addNode(c, a.id, reply('b'));
  a.parent = b.id;
  equal(tree.selectedPath(c), []);
  ok(tree.pathTo(c, b.id).length <= 2, 'too long');
});

test('parameters become fields of the request', () => {
  equal(request.settingsOf(request.kDefaults), {});
  equal(request.settingsOf({ ...request.kDefaults, temperature: '0.7', top_p: '0.9', top_k: '40', max_tokens: '100', seed: '3', effort: 'custom', effortNumber: '12', stop: 'a\n\nb' }),
    { temperature: 0.7, top_p: 0.9, top_k: 40, max_tokens: 100, seed: 3, reasoning_effort: 12, stop: ['a', 'b'] });
  equal(request.settingsOf({ ...request.kDefaults, format: 'json_schema', schema: '{"type": "object"}' }).response_format,
    { type: 'json_schema', json_schema: { name: 'answer', schema: { type: 'object' }, strict: true } });
  const tools = request.settingsOf({ ...request.kDefaults, tools: '{"name": "f"}', tool_choice: 'f' });
  equal(tools.tools, [{ type: 'function', function: { parameters: { type: 'object', properties: {} }, name: 'f' } }]);
  equal(tools.tool_choice, { type: 'function', function: { name: 'f' } });
});

test('what is wrong with a parameter is said', () => {
  const wrong = (change) => Object.values(request.checkParams({ ...request.kDefaults, ...change }))[0] ?? '';
  for (const [change, words] of [[{ temperature: '2.5' }, 'from 0 to 2'], [{ temperature: 'x' }, 'from 0 to 2'], [{ top_k: '1.5' }, 'whole'], [{ max_tokens: '0' }, 'from 1 on'],
    [{ effort: 'custom', effortNumber: '101' }, '1 to 100'], [{ tools: '[' }, 'not JSON'], [{ tools: '[{"name": "a b"}]' }, 'Tool 1'],
    [{ tools: '[{"name": "a"}, {"name": "a"}]' }, 'Two tools'], [{ tools: '[{"name": "a", "parameters": 3}]' }, 'schema object'],
    [{ format: 'json_schema' }, 'Enter a JSON schema'], [{ format: 'json_schema', schema: '3' }, 'JSON object']]) {
    ok(wrong(change).includes(words), `${show(change)}: ${wrong(change)}`);
  }
  throws(() => request.settingsOf({ ...request.kDefaults, seed: '-1' }), 'Seed');
});

test('turns become messages', () => {
  const path = [{ role: 'user', text: 'hi', images: ['i', 'lost'] }, reply('', { state: 'error' }), user('again'),
    reply('', { reasoning: 'r', toolCalls: [{ id: '1', name: 'f', arguments: '{"a": 1}' }, { id: '2', name: 'g', arguments: '{"cut' }, { id: '3', name: 'h', arguments: '' }] }),
    { role: 'tool', results: [{ id: '1', name: 'f', content: 'one' }, { id: '2', name: 'g', content: 'two' }] }, reply('done', { reasoning: 'q' })];
  equal(request.messagesOf(path, 'be brief', (id) => (id === 'i' ? 'data:image/png;base64,AA==' : undefined)), [
    { role: 'system', content: 'be brief' },
    { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }, { type: 'text', text: 'hi' }] },
    { role: 'user', content: 'again' },
    { role: 'assistant', content: '', reasoning_content: 'r', tool_calls: [{ id: '1', type: 'function', function: { name: 'f', arguments: '{"a": 1}' } }, { id: '3', type: 'function', function: { name: 'h', arguments: '{}' } }] },
    { role: 'tool', tool_call_id: '1', content: 'one' },
    { role: 'assistant', content: 'done', reasoning_content: 'q' }]);
});

test('chunks become an answer with its numbers', () => {
  const node = answer.emptyAnswer('m');
  node.timing.sent = 1000;
  const put = (delta, now, more = {}) => answer.addChunk(node, { choices: [{ delta, finish_reason: null, ...more }] }, now);
  put({ role: 'assistant', content: '' }, 1100);
  equal(node.state, 'waiting', 'the role alone is no token');
  put({ reasoning_content: 'a' }, 1200);
  put({ reasoning_content: 'b' }, 1400);
  ok(answer.isThinking(node), 'not thinking');
  equal(answer.numbersOf(node, 1500).thinking, 300);
  put({ content: 'x' }, 1600);
  put({ tool_calls: [{ index: 0, id: 'c', function: { name: 'f', arguments: '' } }] }, 1700);
  put({ tool_calls: [{ index: 0, function: { arguments: '{"a":' } }, { index: 1, id: 'd', function: { name: 'g', arguments: '{}' } }] }, 1800);
  put({ tool_calls: [{ index: 0, function: { arguments: '1}' } }, { index: 1e9, id: 'e' }] }, 2200, { finish_reason: 'tool_calls' });
  let numbers = answer.numbersOf(node, 9999);
  equal([numbers.tokens, numbers.exact, numbers.first, numbers.thinking, numbers.rate], [6, false, 200, 400, 5]);
  answer.addChunk(node, { choices: [], usage: { prompt_tokens: 7, completion_tokens: 11, prompt_tokens_details: { cached_tokens: 4 }, completion_tokens_details: { reasoning_tokens: 2 } } }, 2300);
  numbers = answer.numbersOf(node, 9999);
  equal([numbers.tokens, numbers.exact, numbers.rate, numbers.prompt, numbers.cached, numbers.reasoningTokens], [11, true, 10, 7, 4, 2]);
  equal(node.toolCalls, [{ id: 'c', name: 'f', arguments: '{"a":1}' }, { id: 'd', name: 'g', arguments: '{}' }]);
});

test('an import is checked and gets ids of its own', () => {
  const file = { format: 'mini-deepinfer-conversations', version: 1, images: [{ id: 'i', url: 'data:image/png;base64,AAAA', name: 'n' }],
    conversations: [{ id: 'x', title: 't', nodes: { a: { role: 'user', parent: null, order: 0, text: 'hi', images: ['i', 'none'] }, b: { role: 'assistant', parent: 'a', order: 1, content: 'yo', state: 'streaming', evil: 1, toolCalls: [3, { id: 4 }] } }, selected: { '': 'a', a: 'b', q: 'z' } }] };
  const { conversations: [c], images } = checkImport(file, 'f.json');
  equal(shown(c), ['hi 1/1', 'yo 1/1']);
  const [a, b] = tree.selectedPath(c).map(({ node }) => node);
  equal([a.images, b.state, b.evil, b.toolCalls], [[images[0].id], 'interrupted', undefined, [{ id: '', name: '', arguments: '' }]]);
  ok(c.id !== 'x' && !('a' in c.nodes), 'old ids');
  throws(() => checkImport([], 'f.json'), 'not an export');
  throws(() => checkImport({ ...file, conversations: [{}] }, 'f.json'), 'conversation 1: no turns');
  throws(() => checkImport({ ...file, conversations: [{ nodes: { a: { role: 'root', parent: null } } }] }, 'f.json'), 'known role');
  throws(() => checkImport({ ...file, conversations: [{ nodes: { a: { role: 'user', parent: 'b' } } }] }, 'f.json'), 'parent is missing');
  throws(() => checkImport({ ...file, images: [{ id: 'i', url: 'data:text/html;base64,AAAA' }] }, 'f.json'), 'not PNG');
});
