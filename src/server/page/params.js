// The panel of parameters. What is empty is the server's choice; what is wrong is said beside its field.
import { hasKey, setKey } from './api.js';
import { chat, events, setParams } from './chat.js';
import { byId, h, iconButton } from './dom.js';
import { checkParams, kDefaults, parseTools } from './request.js';

export const kEfforts = [['', 'Thinking: default'], ['none', 'No thinking'], ['low', 'Thinking: low'], ['medium', 'Thinking: medium'], ['high', 'Thinking: high'],
  ['max', 'Thinking: max'], ['custom', 'Thinking: 1 to 100']];
const kSchemaExample = { type: 'object', properties: { title: { type: 'string' }, year: { type: 'integer' } }, required: ['title', 'year'] };
const kToolExample = [{ name: 'get_weather', description: 'Weather at a place', parameters: { type: 'object', properties: { place: { type: 'string' } }, required: ['place'] } }];

const options = (list) => list.map(([value, label]) => h('option', { value }, label));

export class ParamsPanel {
  constructor() {
    this.panel = byId('params');
    this.fields = {};
    this.notes = {};
    const numbers = h('div.grid', {}, this.#number('temperature', 'Temperature', '0.1'), this.#number('top_p', 'Top p', '0.05'),
      this.#number('top_k', 'Top k', '1'), this.#number('max_tokens', 'Longest answer', '1', 'tokens'), this.#number('seed', 'Seed', '1'));
    const field = (name, label, element) => this.#field(name, label, element);
    const area = (rows) => h('textarea', { rows, spellcheck: false, className: 'mono' });
    const example = (name, value, label) => h('button.text-button', { type: 'button', onclick: () => this.#put(name, JSON.stringify(value, null, 2)) }, label);
    this.panel.append(
      h('div.panel-head', {}, h('h2', {}, 'Parameters'), iconButton('close', 'Hide parameters', () => this.toggle(false))),
      h('p.where', {}, 'For this conversation, and for the next ones you start. What is empty is left to the server.'),
      field('system', 'System prompt', h('textarea', { rows: 4, placeholder: 'How the model should behave' })),
      field('effort', 'Reasoning', h('select', {}, ...options(kEfforts))),
      this.#number('effortNumber', 'Effort, 1 to 100', '1'),
      numbers,
      field('stop', 'Stop strings, one a line', area(2)),
      field('format', 'Response format', h('select', {}, ...options([['text', 'Text'], ['json_object', 'Any JSON object'], ['json_schema', 'JSON schema']]))),
      field('schema', 'JSON schema', area(7)), example('schema', kSchemaExample, 'Insert an example schema'),
      field('tools', 'Tools, as a JSON list', area(7)), example('tools', kToolExample, 'Insert an example tool'),
      field('tool_choice', 'Tool choice', h('select')),
      h('button.button.wide', { type: 'button', onclick: () => this.#reset() }, 'Reset all'),
      this.forget = h('button.button.wide', { type: 'button', onclick: () => this.#forgetKey() }, 'Forget the API key'));
    this.schemaExample = this.fields.schema.parentElement.nextElementSibling;
    this.panel.addEventListener('input', ({ target }) => this.#changed(target));
    this.panel.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        this.toggle(false);
      }
    });
    const quick = byId('effort');
    quick.append(...options(kEfforts));
    quick.addEventListener('change', () => {
      setParams({ effort: quick.value });
      if (quick.value === 'custom') this.toggle(true, 'effortNumber');
    });
    byId('open-params').addEventListener('click', () => this.toggle());
    events.addEventListener('opened', () => this.draw());
    events.addEventListener('params', () => this.draw());
    events.addEventListener('models', () => this.draw());
  }

  #field(name, label, element) {
    const id = `param-${name}`;
    element.id = id;
    element.name = name;
    element.setAttribute('aria-describedby', `${id}-note`);
    const note = h('p.wrong', { id: `${id}-note`, hidden: true });
    this.fields[name] = element;
    this.notes[name] = note;
    return h('div.field', {}, h('label', { for: id }, label), element, note);
  }

  #number(name, label, step, placeholder = 'default') {
    return this.#field(name, label, h('input', { type: 'number', inputMode: 'decimal', step, placeholder, autocomplete: 'off' }));
  }

  #changed(target) {
    if (!(target.name in kDefaults)) return;
    const value = target.type === 'number' && target.validity.badInput ? 'x' : target.value;
    this.editing = target;
    setParams({ [target.name]: value });
    this.editing = null;
  }

  #put(name, text) {
    this.fields[name].value = text;
    this.#changed(this.fields[name]);
    this.fields[name].focus();
  }

  #reset() {
    setParams({ ...kDefaults });
    this.fields.system.focus();
  }

  #forgetKey() {
    setKey('', false);
    this.fields.system.focus();
    this.draw();
  }

  draw() {
    this.forget.hidden = !hasKey();
    const params = chat.conversation.params;
    const choices = [['auto', 'Model decides'], ['required', 'Some tool'], ['none', 'No tool']];
    try {
      for (const tool of parseTools(params.tools)) choices.push([tool.function.name, `Only ${tool.function.name}`]);
    } catch {
      if (!choices.some(([value]) => value === params.tool_choice)) choices.push([params.tool_choice, params.tool_choice]);
    }
    this.fields.tool_choice.replaceChildren(...options(choices));
    for (const [name, element] of Object.entries(this.fields)) {
      if (element === this.editing) continue;
      element.value = params[name];
      // A tool that was renamed: no choice is left that names it.
      if (name === 'tool_choice' && element.value === '') setTimeout(() => setParams({ tool_choice: 'auto' }));
    }
    byId('effort').value = params.effort;
    const wrong = checkParams(params);
    for (const [name, note] of Object.entries(this.notes)) {
      note.hidden = !wrong[name];
      note.textContent = wrong[name] ?? '';
      this.fields[name].setAttribute('aria-invalid', String(Boolean(wrong[name])));
    }
    this.fields.effortNumber.parentElement.hidden = params.effort !== 'custom';
    this.fields.schema.parentElement.hidden = params.format !== 'json_schema';
    this.schemaExample.hidden = params.format !== 'json_schema' || params.schema.trim() !== '';
    this.fields.tools.parentElement.nextElementSibling.hidden = params.tools.trim() !== '';
    this.fields.tool_choice.parentElement.hidden = params.tools.trim() === '';
    const changed = Object.entries(kDefaults).some(([name, value]) => params[name] !== value && !['effort', 'effortNumber', 'tool_choice'].includes(name));
    byId('open-params').classList.toggle('changed', changed);
  }

  toggle(on = this.panel.hidden, focus = 'system') {
    this.panel.hidden = !on;
    byId('open-params').setAttribute('aria-expanded', String(on));
    if (on) this.fields[focus].focus();
    else byId('open-params').focus();
  }
}
