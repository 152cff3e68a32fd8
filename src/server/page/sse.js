// Server-sent events out of bytes that arrive in any pieces: a piece may end inside a character, a line ending or a field.
export class EventParser {
  constructor() {
    this.decoder = new TextDecoder();
    this.line = '';
    this.data = [];
    this.event = '';
    this.afterReturn = false;
  }

  // Takes the next bytes; gives the events that they complete, each {event, data}.
  push(bytes) {
    return this.#lines(this.decoder.decode(bytes, { stream: true }));
  }

  // The end of the stream. An event without its closing blank line is dropped, as the standard says.
  end() {
    return this.#lines(this.decoder.decode());
  }

  #lines(text) {
    const events = [];
    let start = 0;
    for (let i = 0; i < text.length; i += 1) {
      const c = text[i];
      if (c !== '\n' && c !== '\r') {
        this.afterReturn = false;
        continue;
      }
      const secondHalf = c === '\n' && this.afterReturn && i === start && this.line === '';
      this.afterReturn = c === '\r';
      if (secondHalf) {
        start = i + 1;
        continue;
      }
      this.#field(this.line + text.slice(start, i), events);
      this.line = '';
      start = i + 1;
    }
    this.line += text.slice(start);
    return events;
  }

  #field(line, events) {
    if (line === '') {
      if (this.data.length > 0) events.push({ event: this.event || 'message', data: this.data.join('\n') });
      this.data = [];
      this.event = '';
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return;
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? '' : line.slice(colon + 1);
    if (value.startsWith(' ')) value = value.slice(1);
    if (name === 'data') this.data.push(value);
    if (name === 'event') this.event = value;
  }
}
