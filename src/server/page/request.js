// Parameters and turns as the body of POST /v1/chat/completions.

// What the panel edits; empty: the server's own choice, and not sent.
export const kDefaults = { system: '', effort: '', effortNumber: '60', temperature: '', top_p: '', top_k: '', max_tokens: '', seed: '',
  stop: '', format: 'text', schema: '', tools: '', tool_choice: 'auto' };

const kNumbers = {
  temperature: { name: 'Temperature', least: 0, most: 2 },
  top_p: { name: 'Top p', least: 0, most: 1 },
  top_k: { name: 'Top k', least: 0, most: 1000000, whole: true },
  max_tokens: { name: 'Longest answer', least: 1, most: 10000000, whole: true },
  seed: { name: 'Seed', least: 0, most: Number.MAX_SAFE_INTEGER, whole: true },
};

function json(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error.message}`);
  }
}

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);

// Tools as the API takes them. Accepts a list of {type: 'function', function: {...}} or of bare functions, or one.
export function parseTools(text) {
  if (!text.trim()) return [];
  const parsed = json(text, 'The list of tools');
  const list = Array.isArray(parsed) ? parsed : [parsed];
  const names = new Set();
  return list.map((entry, i) => {
    const tool = isObject(entry) && isObject(entry.function) ? entry.function : entry;
    if (!isObject(tool) || typeof tool.name !== 'string' || !/^[\w-]{1,64}$/.test(tool.name)) {
      throw new Error(`Tool ${i + 1} needs a "name" of 1 to 64 letters, digits, _ or -`);
    }
    if (names.has(tool.name)) throw new Error(`Two tools are named "${tool.name}"`);
    names.add(tool.name);
    if (tool.parameters !== undefined && !isObject(tool.parameters)) throw new Error(`The parameters of "${tool.name}" must be a JSON schema object`);
    return { type: 'function', function: { parameters: { type: 'object', properties: {} }, ...tool } };
  });
}

export function parseSchema(text) {
  if (!text.trim()) throw new Error('Enter a JSON schema, or choose another response format');
  const parsed = json(text, 'The schema');
  if (!isObject(parsed)) throw new Error('The schema must be a JSON object');
  // Either a schema, or the API's own {name, schema, strict}.
  return isObject(parsed.schema) && typeof parsed.name === 'string' ? parsed : { name: 'answer', schema: parsed, strict: true };
}

// Every field that is wrong: {field: message}.
export function checkParams(params) {
  const wrong = {};
  for (const [field, { name, least, most, whole }] of Object.entries(kNumbers)) {
    const text = String(params[field] ?? '').trim();
    const value = Number(text);
    if (text && (!Number.isFinite(value) || value < least || value > most || (whole && !Number.isInteger(value)))) {
      wrong[field] = most < 1e6 ? `${name} is a ${whole ? 'whole ' : ''}number from ${least} to ${most}` : `${name} is a whole number from ${least} on`;
    }
  }
  if (params.effort === 'custom') {
    const value = Number(params.effortNumber);
    if (!Number.isInteger(value) || value < 1 || value > 100) wrong.effortNumber = 'Effort is a whole number from 1 to 100';
  }
  const attempt = (field, parse) => {
    try {
      parse();
    } catch (error) {
      wrong[field] = error.message;
    }
  };
  attempt('tools', () => parseTools(params.tools ?? ''));
  if (params.format === 'json_schema') attempt('schema', () => parseSchema(params.schema ?? ''));
  return wrong;
}

// The fields of a request that the parameters set. Throws an Error with the first thing that is wrong.
export function settingsOf(params) {
  const wrong = Object.values(checkParams(params));
  if (wrong.length > 0) throw new Error(wrong[0]);
  const settings = {};
  for (const field of Object.keys(kNumbers)) {
    const text = String(params[field] ?? '').trim();
    if (text) settings[field] = Number(text);
  }
  if (params.effort) settings.reasoning_effort = params.effort === 'custom' ? Number(params.effortNumber) : params.effort;
  const stop = (params.stop ?? '').split('\n').filter((line) => line !== '');
  if (stop.length > 0) settings.stop = stop;
  if (params.format === 'json_object') settings.response_format = { type: 'json_object' };
  if (params.format === 'json_schema') settings.response_format = { type: 'json_schema', json_schema: parseSchema(params.schema) };
  const tools = parseTools(params.tools ?? '');
  if (tools.length > 0) {
    settings.tools = tools;
    const choice = params.tool_choice || 'auto';
    settings.tool_choice = ['auto', 'required', 'none'].includes(choice) ? choice : { type: 'function', function: { name: choice } };
  }
  return settings;
}

// Turns as the API's messages. imageOf(id): the data URL of an image, or undefined when it is lost.
export function messagesOf(path, system, imageOf) {
  const messages = [];
  if (system?.trim()) messages.push({ role: 'system', content: system });
  const known = new Set();
  for (const node of path) {
    if (node.role === 'user') messages.push({ role: 'user', content: userContent(node, imageOf) });
    if (node.role === 'assistant') {
      const calls = wholeCalls(node);
      if (!node.content && calls.length === 0) continue;  // an answer that failed or was stopped before it began
      const message = { role: 'assistant', content: node.content };
      if (node.reasoning) message.reasoning_content = node.reasoning;
      if (calls.length > 0) {
        message.tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: 'function', function: { name, arguments: text } }));
        for (const call of calls) known.add(call.id);
      }
      messages.push(message);
    }
    if (node.role === 'tool') {
      for (const result of node.results) {
        if (known.has(result.id)) messages.push({ role: 'tool', tool_call_id: result.id, content: result.content });
      }
    }
  }
  return messages;
}

function userContent(node, imageOf) {
  const images = (node.images ?? []).map((id) => imageOf(id)).filter(Boolean);
  if (images.length === 0) return node.text;
  const parts = images.map((url) => ({ type: 'image_url', image_url: { url } }));
  if (node.text) parts.push({ type: 'text', text: node.text });
  return parts;
}

// The calls of an answer that came whole: a stop in the middle leaves arguments that are not JSON.
export function wholeCalls(node) {
  return (node.toolCalls ?? []).filter((call) => {
    try {
      return call.id && call.name && isObject(JSON.parse(call.arguments || '{}'));
    } catch {
      return false;
    }
  }).map((call) => ({ ...call, arguments: call.arguments || '{}' }));
}
