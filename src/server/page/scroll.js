// Keeps the end of a growing page in sight until the reader goes elsewhere, and never pulls against a reader.
const kNear = 60;  // px from the end that count as being there

export class Follower {
  constructor(scroller, button) {
    this.scroller = scroller;
    this.button = button;
    this.following = true;
    this.top = 0;
    // Only what a person does ends following: the page's own growth also makes scroll events.
    scroller.addEventListener('wheel', (event) => { if (event.deltaY < 0) this.#leave(); }, { passive: true });
    scroller.addEventListener('touchmove', () => this.#leave(), { passive: true });
    scroller.addEventListener('pointerdown', (event) => { if (event.offsetX >= scroller.clientWidth) this.#leave(); });
    scroller.addEventListener('keydown', (event) => {
      if (['PageUp', 'ArrowUp', 'Home'].includes(event.key) && !event.target.matches('textarea, input')) this.#leave();
    });
    scroller.addEventListener('scroll', () => this.#scrolled(), { passive: true });
    button.addEventListener('click', () => this.toEnd());
    new ResizeObserver(() => this.grew()).observe(scroller);
  }

  #distance() {
    return this.scroller.scrollHeight - this.scroller.clientHeight - this.scroller.scrollTop;
  }

  #leave() {
    this.following = false;
    this.#look();
  }

  // Who comes back down to the end wants to follow again.
  #scrolled() {
    const top = this.scroller.scrollTop;
    if (top > this.top && this.#distance() < kNear) this.following = true;
    this.top = top;
    this.#look();
  }

  #look() {
    this.button.hidden = this.following || this.#distance() < kNear;
  }

  // To be called when the content has grown.
  grew() {
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.#look();
  }

  toEnd() {
    this.following = true;
    this.grew();
    this.button.hidden = true;
  }

  // The reader is taken somewhere else on purpose.
  release() {
    this.#leave();
  }
}
