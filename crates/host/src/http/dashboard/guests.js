// The guests: a card each, in an order that one chooses. Maps are asked for only where they are seen.

const CARD_CELLS = 512;
const MAP_REQUESTS_PER_S = 8;

const cards = new Map();
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) target.card.isSeen = isIntersecting;
}, { rootMargin: "80px" });

const ORDERS = {
  name: () => 0,
  saved: (a, b) => savedBytes(b) - savedBytes(a),
  private: (a, b) => b.private_bytes - a.private_bytes,
  breaks: (a, b) => b.breaks - a.breaks,
  state: (a, b) => Number(Boolean(b.state.advice)) - Number(Boolean(a.state.advice)),
};

// Nobody can tell what the memory of the others is.
const isConnected = (guest) => guest.state.name !== "disconnected";

const savedBytes = (guest) => guest.merged_bytes + guest.zero_bytes;

class Card {
  constructor(name) {
    const [node, top, facts] = [element("article", "guest"), element("div", "top"), element("div", "facts")];
    this.name = element("button", "name", name);
    this.name.type = "button";
    this.name.addEventListener("click", () => openDetail(name));
    [this.domain, this.state] = [element("span", "dim domain"), element("span", "state")];
    [this.left, this.right] = [element("span"), element("span")];
    const canvas = element("canvas", "map");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.addEventListener("click", () => openDetail(name));
    canvas.addEventListener("keydown", (event) => { if (event.key === "Enter") openDetail(name); });
    top.append(this.name, this.domain, this.state);
    facts.append(this.left, this.right);
    node.append(top, facts, canvas);
    node.card = this;
    Object.assign(this, { node, canvas, isSeen: false, askedAt: 0, isAsked: false });
    this.map = new MemoryMap(canvas, CARD_CELLS, 8, 72);
    this.map.layout();
    seen.observe(node);
  }

  set(guest) {
    this.guest = guest;
    showState(this.state, guest.state);
    setText(this.left, formatBytes(guest.ram_bytes));
    setText(this.domain, guest.domain);
    const share = (savedBytes(guest) / Math.max(1, guest.ram_bytes)) * 100;
    setText(this.right, `merged and zero ${formatBytes(savedBytes(guest))}, ${Math.round(share)}\u202f%`);
    const label = `Memory of ${guest.name}: ${formatBytes(guest.merged_bytes)} merged, ${formatBytes(guest.zero_bytes)} zero, of ${formatBytes(guest.ram_bytes)}`;
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
  }

  async refresh() {
    [this.isAsked, this.askedAt] = [true, performance.now()];
    try {
      this.map.set(await ask(`${guestPath(this.guest.name)}/map?cells=${CARD_CELLS}`));
    } catch (error) {
      // It has left since: its card goes with the list.
      if (error instanceof NeedsToken) throw error;
    } finally {
      this.isAsked = false;
    }
  }
}

function isWanted(guest) {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = `${guest.name} ${guest.domain} ${guest.state.name} ${guest.pid}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

// A guest that lost its connection may still be listed beside another that has its name now.
function oneOfEachName(guests) {
  const named = new Map();
  for (const guest of guests) if (isConnected(guest) || !named.has(guest.name)) named.set(guest.name, guest);
  return [...named.values()];
}

let lastGuests = [];

function showGuests(all) {
  const guests = lastGuests = oneOfEachName(all);
  const order = ORDERS[byId("sort").value];
  const wanted = guests.filter(isWanted).sort((a, b) => order(a, b) || a.name.localeCompare(b.name, "en", { numeric: true }));
  const gone = new Set(cards.keys());
  const list = byId("guests");
  wanted.forEach((guest, at) => {
    gone.delete(guest.name);
    let card = cards.get(guest.name);
    if (!card) {
      card = new Card(guest.name);
      cards.set(guest.name, card);
    }
    if (list.children[at] !== card.node) list.insertBefore(card.node, list.children[at] ?? null);
    card.set(guest);
  });
  for (const name of gone) {
    const { node } = cards.get(name);
    seen.unobserve(node);
    node.remove();
    cards.delete(name);
  }
  setText(byId("guest-count"), wanted.length === guests.length ? `${guests.length}` : `${wanted.length} of ${guests.length}`);
  byId("no-guests").hidden = guests.length > 0;
}

// Asks for the map that is longest out of date, of those that are seen.
function refreshOldest() {
  const waiting = [...cards.values()].filter((card) => card.isSeen && !card.isAsked && isConnected(card.guest));
  const oldest = waiting.reduce((a, b) => (b.askedAt < (a?.askedAt ?? Infinity) ? b : a), null);
  if (oldest && performance.now() - oldest.askedAt > 900) oldest.refresh().catch(needToken);
}
