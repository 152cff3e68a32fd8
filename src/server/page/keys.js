// Keys that work anywhere on the page. Those of single controls stand with them.
import { isRunning, stop } from './chat.js';
import { showHelp } from './dialogs.js';
import { announce, byId } from './dom.js';
import { toggleSidebar } from './sidebar.js';
import { nextTheme } from './theme.js';

export function startKeys({ composer, thread, sidebar, params }) {
  const alt = { KeyN: () => sidebar.startNew(), KeyS: toggleSidebar, KeyP: () => params.toggle(), KeyT: nextTheme,
    ArrowUp: () => thread.step(-1), ArrowDown: () => thread.step(1) || composer.focus() };
  addEventListener('keydown', (event) => {
    if (event.isComposing || document.querySelector('dialog[open]')) return;
    const typing = event.target.matches('input, textarea, select');
    const act = (work) => {
      event.preventDefault();
      work();
    };
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.code === 'KeyK') act(() => sidebar.focusSearch());
    else if (event.altKey && !event.ctrlKey && !event.metaKey && alt[event.code]) act(alt[event.code]);
    else if (event.key === 'Escape') {
      if (!byId('scrim').hidden) act(toggleSidebar);
      else if (composer.cancelEdit()) event.preventDefault();
      else if (isRunning()) {
        act(() => stop());
        announce('Stopped');
      } else if (!typing) act(() => composer.focus());
    } else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      if (event.key === '?') act(showHelp);
      if (event.key === '/') act(() => composer.focus());
    }
  });
}
