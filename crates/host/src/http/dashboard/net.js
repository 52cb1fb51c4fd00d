// Asking the daemon. A token comes in the address behind `#token=`, which browsers send to nobody, and
// is taken out of it at once; it is kept for as long as this tab lives.

let token = sessionStorage.getItem("bindery-token");

function setToken(given) {
  token = given.trim();
  sessionStorage.setItem("bindery-token", token);
}

// Returns whether the address held one.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return false;
  setToken(given);
  history.replaceState(null, "", location.pathname);
  return true;
}

class NeedsToken extends Error {}

async function ask(path, patience_ms = 8000) {
  const shown = token;
  // No daemon has a token of other signs, and headers cannot carry them all.
  if (shown && !/^[ -~]+$/.test(shown)) throw new NeedsToken();
  const headers = shown ? { authorization: `Bearer ${shown}` } : {};
  const response = await fetch(`/api/v1/${path}`, { headers, signal: AbortSignal.timeout(patience_ms) });
  if (response.status === 401) {
    // Another token was given meanwhile: that the old one is wrong is no news.
    if (token !== shown) return ask(path, patience_ms);
    throw new NeedsToken();
  }
  const body = await response.json();
  if (!response.ok) throw new Error(body.error.message);
  return body;
}

const guestPath = (name) => `guests/${encodeURIComponent(name)}`;
