// One tooltip for the whole page.

const tip = byId("tip");

// Shows rows of [name, value, colour] under a line that says where, beside a point of the window.
function showTip(x, y, where, rows) {
  const table = element("table");
  for (const [name, value, colour] of rows) {
    const row = table.insertRow();
    const label = element("span", colour ? "key" : "", name);
    if (colour) label.style.setProperty("--key", `var(--${colour})`);
    row.insertCell().append(label);
    row.insertCell().textContent = value;
  }
  tip.replaceChildren(element("div", "where", where), table);
  // A dialog is drawn above everything else on the page: the tooltip has to be in it.
  const parent = document.querySelector("dialog[open]") ?? document.body;
  if (tip.parentNode !== parent) parent.append(tip);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 14 + width > innerWidth - 8 ? Math.max(8, x - 14 - width) : x + 14;
  const top = y + 16 + height > innerHeight - 8 ? Math.max(8, y - 12 - height) : y + 16;
  tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

function hideTip() {
  tip.hidden = true;
}
