// Shows times in the reader's time zone and keeps the page of a running experiment fresh: fetches it
// again and swaps the parts marked data-live that have changed. A fetch may take 5 s; when the service
// does not answer, a banner shows the age of the page. Without scripts such a page reloads every 10 s.
"use strict";

(function () {
  const everyMs = Number(document.body.dataset.everyS) * 1000;
  const patienceMs = 5000;
  const stale = document.getElementById("stale");
  let freshAt = Date.now();
  let failing = false;
  const openDetails = (part) =>
    Array.from(part.querySelectorAll("details"), (row) => row.open);

  // Times come in UTC; a reader thinks in local time, and finds UTC where the pointer rests.
  function localize(root) {
    const two = (number) => String(number).padStart(2, "0");
    for (const row of root.querySelectorAll("time[datetime]")) {
      const at = new Date(row.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      row.title = row.dateTime;
      row.textContent = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
        `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    }
  }

  function swap(fresh) {
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
      if (!next || next.innerHTML === part.innerHTML) continue;
      if (part.contains(document.activeElement) && document.activeElement !== part) continue;
      const open = openDetails(part);
      const atEnd = part.scrollTop + part.clientHeight >= part.scrollHeight - 4;
      part.replaceChildren(...Array.from(next.childNodes));
      part.querySelectorAll("details").forEach((row, index) => { row.open = open[index] === true; });
      if (atEnd) part.scrollTop = part.scrollHeight;
    }
    document.title = fresh.title;
  }

  function showAge(fails) {
    failing = fails;
    stale.hidden = !fails;
    document.body.classList.toggle("is-stale", fails);
    stale.querySelector(".age").textContent = `${Math.round((Date.now() - freshAt) / 1000)} s`;
  }

  async function refresh() {
    if (document.hidden) return true;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "manual",
        signal: AbortSignal.timeout(patienceMs) });
      if (answer.type === "opaqueredirect") { location.reload(); return false; }
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      localize(fresh);
      swap(fresh);
      freshAt = Date.now();
      showAge(false);
      return fresh.body.dataset.everyS !== undefined;
    } catch (error) {
      showAge(true);
      return true;
    }
  }

  async function loop() {
    if (await refresh()) setTimeout(loop, everyMs);
  }

  localize(document);
  if (everyMs > 0) {  // what is over stays as it is
    setTimeout(loop, everyMs);
    setInterval(() => { if (failing) showAge(true); }, 1000);
  }
})();
