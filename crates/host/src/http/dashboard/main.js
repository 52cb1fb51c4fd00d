// What is asked when, and where it is shown.

const samples = { began: null, next: 0, columns: null };

const percents = (name) => (columns) => cpuPercent(columns.time_ms, columns[name]);
const savedChart = new Chart(byId("tile-saved"), "Saved, net of all metadata", formatBytes, 1024, [
  ["saved", "merged", (columns) => columns.general_profit, "filled"],
]);
const cpuChart = new Chart(byId("tile-cpu"), "CPU, of one core", formatPercent, 10, [
  ["daemon", "unshared", percents("cpu_ms")],
  ["in guests", "hot", percents("guest_cpu_ms")],
]);
const scanChart = new Chart(byId("tile-scan"), "Scan time", formatTime, 10, [
  ["reached", "merged", (columns) => columns.scan_time_us],
  ["target", "dim", (columns) => columns.target_scan_time_us, "dashed"],
]);
const memoryChart = new Chart(byId("tile-memory"), "Memory in use", formatBytes, 1024, [
  ["store", "zero", (columns) => columns.store_bytes, "filled"],
  ["daemon", "unshared", (columns) => columns.resident_bytes],
]);

const latest = (values) => values[values.length - 1];

// Takes in the samples since the last ones, or all of a daemon that is another than before: its samples
// have numbers of their own.
async function askHistory() {
  let told = await ask(`history?since=${samples.next}`);
  const isOther = samples.began !== null && told.began_unix_ms !== samples.began;
  if (isOther) told = await ask("history?since=0");
  if (isOther || samples.columns === null || told.first !== samples.next) samples.columns = told.samples;
  else for (const [name, values] of Object.entries(told.samples)) samples.columns[name].push(...values);
  for (const values of Object.values(samples.columns)) values.splice(0, Math.max(0, values.length - 600));
  [samples.began, samples.next] = [told.began_unix_ms, told.next];
}

async function refreshHistory() {
  await askHistory();
  const { columns } = samples;
  if (columns.time_ms.length === 0) return;
  for (const chart of charts) chart.set(columns);
  const saved = latest(columns.general_profit);
  setText(savedChart.value, formatBytes(saved));
  setText(savedChart.note, `${formatPages(latest(columns.pages_sharing))} by sharing, ${formatPages(latest(columns.zero_pages))} zero`);
  const [daemon, guests] = cpuChart.values.map(latest);
  setText(cpuChart.value, formatPercent((daemon ?? 0) + (guests ?? 0)));
  setText(cpuChart.note, `daemon ${formatPercent(daemon ?? 0)}, in guests ${formatPercent(guests ?? 0)}`);
  const target = latest(columns.target_scan_time_us);
  setText(scanChart.value, formatTime(latest(columns.scan_time_us)));
  const rate = latest(columns.pages_to_scan);
  const pace = rate === null ? "as fast as it goes" : `${formatCount(rate)} pages a batch`;
  setText(scanChart.note, target === null ? pace : `at most ${formatTime(target)}; ${pace}`);
  setText(memoryChart.value, formatBytes(latest(columns.resident_bytes)));
  setText(memoryChart.note, `daemon; canonical pages ${formatBytes(latest(columns.store_bytes))}`);
}

function showHost(status) {
  showState(byId("host-state"), status.state);
  setText(byId("host-facts"), `${status.program_version} · process ${status.pid} · up ${formatUptime(status.uptime_s)} · ${status.settings.workers} workers, period ${formatTime(status.settings.period_ms * 1000)}`);
  const rows = byId("domains").tBodies[0];
  status.domains.forEach((domain, at) => {
    const row = rows.rows[at] ?? rows.insertRow();
    const values = [
      nameOf(domain), null, formatCount(domain.guests), formatBytes(domain.general_profit),
      formatPages(domain.pages_sharing), formatPages(domain.pages_shared), formatPages(domain.zero_pages),
      formatPages(domain.pages_unshared), formatPages(domain.pages_volatile),
      formatBytes(domain.metadata_bytes + domain.mappings_bytes),
    ];
    values.forEach((value, column) => {
      const cell = row.cells[column] ?? row.insertCell();
      if (value === null) showState(cell.firstChild ?? cell.appendChild(element("span", "state")), domain.state);
      else setText(cell, value);
      if (column > 1) cell.className = "n";
    });
  });
  while (rows.rows.length > status.domains.length) rows.deleteRow(-1);
  byId("domains").hidden = status.domains.length === 0;
}

function nameOf(domain) {
  const node = domain.node === undefined ? "" : `, node ${domain.node}`;
  return `${domain.name} of user ${domain.uid}${node}`;
}

function showAdvice(status, guests) {
  const lines = [];
  if (status.state.advice) lines.push(["The daemon", status.state]);
  for (const domain of status.domains) {
    if (domain.state.advice) lines.push([`Domain ${nameOf(domain)}`, domain.state]);
  }
  // The same advice for many guests is told once.
  const ill = Map.groupBy(guests.filter((guest) => guest.state.advice), (guest) => guest.state.name);
  for (const many of ill.values()) {
    const who = many.length > 4 ? `${many.length} guests` : many.map((guest) => guest.name).join(", ");
    lines.push([who, many[0].state]);
  }
  const text = lines.map(([who, state]) => `${who}: ${state.name}. ${state.advice}`);
  const box = byId("advice");
  if (box.dataset.text !== text.join("\n")) {
    box.dataset.text = text.join("\n");
    box.replaceChildren(...text.map((line) => element("p", "advice", line)));
  }
  box.hidden = text.length === 0;
}

async function refreshState() {
  const [status, guests] = await Promise.all([ask("status"), ask("guests")]);
  showHost(status);
  showAdvice(status, guests);
  showGuests(guests);
  showDetail();
}

function needToken(error) {
  if (!(error instanceof NeedsToken)) return;
  setText(byId("ask-problem"), token ? "That is not the daemon's token." : "");
  byId("ask").hidden = false;
  byId("main").hidden = true;
  byId("token").focus();
}

// Does `work` again and again, `pause_ms` after it was done, while somebody looks, and says so if the
// daemon does not answer.
async function repeat(work, pause_ms) {
  for (;;) {
    if (!document.hidden && byId("ask").hidden) {
      try {
        await work();
        setText(byId("link"), "");
        byId("main").hidden = false;
      } catch (error) {
        if (error instanceof NeedsToken) needToken(error);
        else setText(byId("link"), "the daemon does not answer; trying again");
      }
    }
    await new Promise((done) => setTimeout(done, pause_ms));
  }
}

function redrawAll() {
  readPalette();
  for (const chart of charts) chart.draw();
  for (const card of cards.values()) card.map.redraw();
  for (const lane of lanes.values()) lane.draw();
  if (dialog.open) detailMap.redraw();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  redrawAll();
}

const darkness = matchMedia("(prefers-color-scheme: dark)");
const ownTheme = () => (darkness.matches ? "dark" : "light");
const otherTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

takeToken();
// Whoever pastes an address with a token while the form asks for one has answered it.
addEventListener("hashchange", () => { if (takeToken()) byId("ask").hidden = true; });
darkness.addEventListener("change", () => setTheme(ownTheme()));
byId("theme").addEventListener("click", otherTheme);
byId("filter").addEventListener("input", () => {
  showGuests(lastGuests);
  showCheckpoints(lastCheckpoints);
});
byId("sort").addEventListener("change", () => showGuests(lastGuests));
addEventListener("resize", redrawAll);
addEventListener("keydown", (event) => {
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    byId("filter").focus();
  } else if (event.key === "t") otherTheme();
});
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(byId("token").value);
  byId("ask").hidden = true;
});
legendInto(byId("legend"));
for (const [name, colour] of LANE_KEYS) {
  const key = element("span", "key", name);
  key.style.setProperty("--key", `var(--${colour})`);
  byId("kept-legend").append(key);
}
setTheme(ownTheme());
repeat(refreshHistory, 1000);
repeat(refreshState, 2000);
repeat(refreshCheckpoints, 2000);
setInterval(() => { if (!document.hidden && byId("ask").hidden) refreshOldest(); }, 1000 / MAP_REQUESTS_PER_S);
setInterval(() => { if (!document.hidden && byId("ask").hidden) refreshDetail(); }, 1000);
