// Markdown trees as elements, and a view of Markdown that grows. Model text only ever becomes text nodes.
import { copyText, h, iconButton } from './dom.js';
import { highlight } from './highlight.js';
import { parseInline } from './inline.js';
import { parseBlocks } from './markdown.js';

export function renderInline(nodes) {
  return nodes.map((node) => {
    switch (node.kind) {
      case 'code': return h('code', {}, node.text);
      case 'strong': return h('strong', {}, ...renderInline(node.children));
      case 'emphasis': return h('em', {}, ...renderInline(node.children));
      case 'strike': return h('s', {}, ...renderInline(node.children));
      case 'break': return h('br');
      case 'link': return anchor(node.address, renderInline(node.children));
      // An image elsewhere is a link: to load it would tell another host that this answer was read.
      case 'image': return anchor(node.address, [`${node.text || 'image'} (image)`]);
      default: return document.createTextNode(node.text);
    }
  });
}

function anchor(address, children) {
  return h('a', { href: address, target: '_blank', rel: 'noopener noreferrer', title: address }, ...children);
}

const inline = (text) => renderInline(parseInline(text));

export function renderBlock(block) {
  switch (block.kind) {
    // Below the turn's own heading (h2); models begin with one or two marks.
    case 'heading': return h(`h${Math.min(6, Math.max(3, block.level + 1))}`, { className: `level${block.level}` }, ...inline(block.text));
    case 'code': return renderCode(block);
    case 'quote': return h('blockquote', {}, ...block.blocks.map(renderBlock));
    case 'list': return renderList(block);
    case 'table': return renderTable(block);
    case 'rule': return h('hr');
    default: return h('p', {}, ...inline(block.text));
  }
}

function renderCode(block) {
  const code = h('code', {}, block.text);
  const pre = h('pre', { tabIndex: 0 }, code);
  const copy = iconButton('copy', 'Copy code', () => copyText(code.textContent, copy));
  const figure = h('figure.code', {}, h('figcaption', {}, h('span', {}, block.language || 'text'), copy), pre);
  if (block.closed) highlight(code, block.language);
  return figure;
}

function renderList(block) {
  const list = h(block.ordered ? 'ol' : 'ul', { className: block.loose ? 'loose' : '' });
  if (block.ordered && block.first !== 1) list.start = block.first;
  for (const item of block.items) {
    const li = h('li');
    if (item.checked !== null) {
      li.className = 'task';
      li.append(h('input', { type: 'checkbox', checked: item.checked, disabled: true, ariaLabel: item.checked ? 'done' : 'to do' }), ' ');
    }
    for (const inner of item.blocks) {
      if (inner.kind === 'paragraph' && !block.loose) li.append(...inline(inner.text));
      else li.append(renderBlock(inner));
    }
    list.append(li);
  }
  return list;
}

function renderTable(block) {
  const cell = (tag, text, column) => h(tag, { className: block.align[column] ? `to-${block.align[column]}` : '' }, ...inline(text));
  const table = h('table', {}, h('thead', {}, h('tr', {}, ...block.head.map((text, i) => cell('th', text, i)))),
    h('tbody', {}, ...block.rows.map((row) => h('tr', {}, ...row.map((text, i) => cell('td', text, i))))));
  return h('div.table', { tabIndex: 0, role: 'group', ariaLabel: 'Table' }, table);
}

// Markdown in an element, redrawn as its source grows: blocks that are finished stay as they are, only the last is
// drawn again, and a code block that is being written only gets its new text.
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.#clear();
  }

  #clear() {
    this.element.replaceChildren();
    this.source = '';
    this.settled = 0;  // where the last block's source begins
    this.last = [];    // elements of the blocks from there on
    this.open = null;  // {code, text, language} of a code block being written
  }

  // `finished`: no more text will come.
  set(source, finished) {
    if (!source.startsWith(this.source)) this.#clear();
    if (source === this.source && !finished) return;
    this.source = source;
    const blocks = parseBlocks(source.slice(this.settled));
    const only = blocks.length === 1 ? blocks[0] : null;
    if (only?.kind === 'code' && !only.closed && !finished && this.open?.language === only.language && only.text.startsWith(this.open.text)) {
      this.open.code.append(only.text.slice(this.open.text.length));
      this.open.text = only.text;
      return;
    }
    const drawn = blocks.map(renderBlock);
    for (const element of this.last) element.remove();
    this.element.append(...drawn);
    const final = blocks.at(-1);
    this.last = drawn.slice(-1);
    this.open = final?.kind === 'code' && !final.closed ? { code: drawn.at(-1).querySelector('pre code'), text: final.text, language: final.language } : null;
    if (final) this.settled += final.start;
    if (finished && this.open) highlight(this.open.code, final.language);
  }
}
