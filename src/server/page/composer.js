// The field to write in: text and images, sending, editing an earlier message, drafts that survive a change of
// conversation.
import { chat, events, isBlind, isRunning, openCalls, path, send, stop } from './chat.js';
import { announce, byId, h, icon, iconButton } from './dom.js';
import { imageFiles, kMostImages, readImage } from './images.js';
import { loadImage, saveImage } from './store.js';

const kDrafts = 'mdi-draft-';

export class Composer {
  // thread: Thread; notice(kind, text): shows a message above the field
  constructor(notice) {
    this.notice = notice;
    this.thread = null;
    this.images = [];
    this.edited = null;  // the message being edited
    this.form = byId('composer');
    this.field = byId('composer-text');
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.submit();
    });
    this.field.addEventListener('input', () => {
      this.#fit();
      this.#keepDraft();
    });
    this.field.addEventListener('keydown', (event) => this.#key(event));
    byId('stop').addEventListener('click', () => stop());
    byId('attach').addEventListener('click', () => byId('files').click());
    byId('files').addEventListener('change', ({ target }) => {
      this.add([...target.files]);
      target.value = '';
    });
    document.addEventListener('paste', (event) => {
      const files = imageFiles(event.clipboardData);
      if (files.length === 0 || document.querySelector('dialog[open]')) return;
      event.preventDefault();
      this.add(files);
    });
    this.#acceptDrops();
    events.addEventListener('opened', () => this.#opened());
    events.addEventListener('running', () => this.#state());
    events.addEventListener('turns', () => this.#state());
    events.addEventListener('models', () => this.#vision());
  }

  #opened() {
    this.edited = null;
    this.images = [];
    this.field.value = sessionDraft(chat.conversation.id);
    this.#drawEditing();
    this.#drawImages();
    this.#fit();
    this.#state();
  }

  #key(event) {
    if (event.isComposing) return;
    const touch = matchMedia('(pointer: coarse)').matches && !matchMedia('(any-pointer: fine)').matches;
    if (event.key === 'Enter' && !event.shiftKey && !event.altKey && (!touch || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.submit();
    }
    if (event.key === 'ArrowUp' && !event.altKey && this.field.value === '' && !this.edited && this.images.length === 0) {
      const last = path().map(({ node }) => node).findLast((node) => node.role === 'user');
      if (!last) return;
      event.preventDefault();
      this.edit(last);
    }
  }

  async submit() {
    const text = this.field.value.trim() === '' ? '' : this.field.value.replace(/\s+$/, '');
    const images = this.images;
    if (isRunning() && !this.edited) {
      announce('An answer is being written. Stop it first, or wait.');
      return;
    }
    if (!text && images.length === 0) return;
    if (images.length > 0 && isBlind()) {
      this.notice('images', 'This model cannot see images. Remove them to send the text.');
      return;
    }
    const results = this.edited || openCalls().length === 0 ? undefined : this.thread.typedResults();
    const parent = this.edited ? this.edited.parent : undefined;
    const sent = images.map((image) => saveImage(image));
    this.field.value = '';
    this.images = [];
    this.edited = null;
    this.notice('images', '');
    this.#keepDraft();
    this.#drawEditing();
    this.#drawImages();
    this.#fit();
    await Promise.all(sent);
    send(text, images, { parent, results });
  }

  async edit(node) {
    if (!this.edited) this.before = { text: this.field.value, images: this.images };
    this.edited = node;
    this.field.value = node.text;
    this.images = (await Promise.all((node.images ?? []).map((id) => loadImage(id)))).filter(Boolean);
    this.#drawEditing();
    this.#drawImages();
    this.#fit();
    this.field.focus();
    this.field.setSelectionRange(this.field.value.length, this.field.value.length);
    announce('Editing your message. Sending makes a branch, Escape leaves it.');
  }

  // False: nothing was being edited.
  cancelEdit() {
    if (!this.edited) return false;
    this.edited = null;
    this.field.value = this.before.text;
    this.images = this.before.images;
    this.#drawEditing();
    this.#drawImages();
    this.#fit();
    this.field.focus();
    return true;
  }

  put(text) {
    this.field.value = text;
    this.#fit();
    this.field.focus();
  }

  focus() {
    this.field.focus();
  }

  async add(files) {
    const problems = [];
    for (const file of files) {
      if (this.images.length >= kMostImages) {
        problems.push(`A message takes ${kMostImages} images.`);
        break;
      }
      try {
        this.images.push(await readImage(file));
      } catch (error) {
        problems.push(error.message);
      }
    }
    if (isBlind() && this.images.length > 0) problems.push('This model cannot see images.');
    this.notice('images', problems.join(' '));
    if (problems.length === 0 && files.length > 0) announce(files.length === 1 ? 'Image added' : `${files.length} images added`);
    this.#drawImages();
    this.#state();
    this.field.focus();
  }

  #vision() {
    const blind = isBlind();
    byId('attach').title = blind ? 'This model cannot see images' : 'Add images (or drop or paste them)';
    byId('attach').disabled = blind;
  }

  #drawEditing() {
    const bar = byId('editing');
    bar.hidden = !this.edited;
    bar.replaceChildren(h('span', {}, icon('edit'), ' Editing: sending makes a branch'),
      h('button.text-button', { type: 'button', onclick: () => this.cancelEdit() }, 'Cancel'));
    this.thread?.mark(this.edited?.id);
    this.#state();
  }

  #drawImages() {
    const list = byId('attachments');
    list.hidden = this.images.length === 0;
    list.replaceChildren(...this.images.map((image) => h('li', {}, h('img', { src: image.url, alt: image.name, title: image.name }),
      iconButton('close', `Remove ${image.name}`, () => {
        this.images = this.images.filter((one) => one !== image);
        if (this.images.length === 0) this.notice('images', '');
        this.#drawImages();
        this.#state();
        this.field.focus();
      }))));
    this.#state();
  }

  #state() {
    const running = isRunning() && !this.edited;
    const stopHadFocus = document.activeElement === byId('stop');
    byId('send').hidden = running;
    byId('stop').hidden = !running;
    byId('composer-hint').textContent = running ? 'Esc stops' : 'Enter sends, Shift+Enter starts a line';
    if (stopHadFocus && !running) this.field.focus();
    byId('send').disabled = this.field.value.trim() === '' && this.images.length === 0;
    this.field.placeholder = openCalls().length > 0 ? 'Enter the results above, or write a message' : 'Ask something';
  }

  #fit() {
    this.field.style.height = 'auto';
    this.field.style.height = `${this.field.scrollHeight}px`;
    this.#state();
  }

  #keepDraft() {
    if (this.edited) return;
    try {
      const name = kDrafts + (chat.kept ? chat.conversation.id : '');
      if (this.field.value) sessionStorage.setItem(name, this.field.value);
      else sessionStorage.removeItem(name);
    } catch {
      // The draft lives as long as the field.
    }
  }

  #acceptDrops() {
    let depth = 0;
    const hasFiles = (event) => event.dataTransfer?.types.includes('Files');
    const over = (on) => document.body.classList.toggle('dropping', on);
    addEventListener('dragenter', (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      depth += 1;
      over(true);
    });
    addEventListener('dragleave', (event) => {
      if (hasFiles(event)) depth = Math.max(0, depth - 1);
      if (depth === 0) over(false);
    });
    addEventListener('dragover', (event) => {
      if (hasFiles(event)) event.preventDefault();
    });
    addEventListener('drop', (event) => {
      depth = 0;
      over(false);
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
  }
}

function sessionDraft(id) {
  try {
    return sessionStorage.getItem(kDrafts + (chat.kept ? id : '')) ?? '';
  } catch {
    return '';
  }
}
