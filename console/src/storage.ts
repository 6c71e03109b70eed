// The browser's storage, which may be switched off: then what is stored lasts as long as the page.

interface Stored {
  get: (name: string) => string | null;
  set: (name: string, value: string) => void;
  remove: (name: string) => void;
}

function stored(find: () => Storage): Stored {
  let storage: Storage | undefined;
  try {
    storage = find();
  } catch {
    storage = undefined;
  }
  const memory = new Map<string, string>();
  return {
    get: (name) => (storage ? storage.getItem(name) : (memory.get(name) ?? null)),
    set: (name, value) => (storage ? storage.setItem(name, value) : memory.set(name, value)),
    remove: (name) => (storage ? storage.removeItem(name) : memory.delete(name)),
  };
}

/** Until the tab is closed. */
export const ofTab = stored(() => sessionStorage);

/** For the browser. */
export const ofBrowser = stored(() => localStorage);
