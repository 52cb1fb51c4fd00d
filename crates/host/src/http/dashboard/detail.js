// One guest, large.

const DETAIL_CELLS = 4096;
const dialog = byId("detail");
let detailName = null;
let detailMap = null;

function openDetail(name) {
  detailName = name;
  hideTip();
  setText(byId("detail-name"), name);
  dialog.showModal();
  detailMap ??= new MemoryMap(byId("detail-map"), DETAIL_CELLS, 22, 380);
  detailMap.map = null;
  detailMap.layout();
  byId("detail-map").focus();
  showDetail();
  refreshDetail();
}

function showDetail() {
  if (!dialog.open) return;
  const guest = lastGuests.find((guest) => guest.name === detailName);
  if (!guest) return dialog.close();
  showState(byId("detail-state"), guest.state);
  setText(byId("detail-facts"), `${guest.domain}, user ${guest.uid}, process ${guest.pid}: ${guest.command}`);
  const advice = byId("detail-advice");
  advice.hidden = !guest.state.advice;
  setText(advice, guest.state.advice ?? "");
  byId("detail-map").setAttribute("aria-label", `Memory of ${guest.name}; arrow keys move from square to square`);
  const figures = [
    ["Memory", formatBytes(guest.ram_bytes)],
    ["Private, at most", formatBytes(guest.private_bytes)],
    ["Merged", formatBytes(guest.merged_bytes)],
    ["Zero", formatBytes(guest.zero_bytes)],
    ["Huge pages", formatBytes(guest.huge_bytes)],
    ["Huge pages split", `${formatCount(guest.huge_pages_split)} now, ${formatCount(guest.huge_splits)} in all`],
    ["Huge pages kept for their writes", formatCount(guest.huge_kept_hot)],
    ["Huge pages made again", `${formatCount(guest.collapses_thin)} for little merged, ${formatCount(guest.collapses_hot)} for their writes`],
    ["Huge pages that became holes", formatCount(guest.collapses_empty)],
    ["Unshared", formatPages(guest.pages_unshared)],
    ["Volatile", formatPages(guest.pages_volatile)],
    ["Breaks", formatCount(guest.breaks)],
    ["Discards", formatCount(guest.discards)],
    ["Mappings", `${formatCount(guest.mappings)} of ${formatCount(guest.mappings_max)}`],
    ["Longest wait for a page", formatTime(guest.transit_max_us)],
    ["CPU for merging", formatTime(guest.guest_cpu_time_us)],
    ["Held by the daemon", formatBytes(guest.metadata_bytes)],
  ];
  const list = byId("detail-figures");
  figures.forEach(([name, value], at) => {
    const box = list.children[at] ?? list.appendChild(element("div"));
    if (!box.firstChild) box.append(element("dt", "", name), element("dd"));
    setText(box.lastChild, value);
  });
}

async function refreshDetail() {
  const guest = lastGuests.find((guest) => guest.name === detailName);
  if (!dialog.open || !guest || !isConnected(guest)) return;
  try {
    const map = await ask(`${guestPath(detailName)}/map?cells=${DETAIL_CELLS}`);
    if (map.guest !== detailName) return;
    detailMap.set(map);
    const square = formatBytes(map.cell_pages * map.page_bytes);
    const heat = map.observed_ms === null ? "; who writes is not known: too many are watching" : "";
    setText(byId("detail-legend"), `A square is ${square}${heat}.`);
  } catch (error) {
    if (error instanceof NeedsToken) needToken(error);
  }
}

byId("detail-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", hideTip);
