// Keeps the page as it is now: fetches the part that changes, and says so where it cannot.
// Without this script everything is there, too; only nothing moves.
"use strict";
(() => {
  const EVERY = 5000, SLOWEST = 60000, TIMEOUT = 10000, LATE = 15000;
  const page = document.getElementById("page");
  if (!page) return;
  const lives = [...page.querySelectorAll("[data-live]")];
  const all = (selector) => lives.flatMap((live) => [...live.querySelectorAll(selector)]);
  const fresh = document.getElementById("fresh");
  const pause = document.getElementById("pause");
  const trouble = document.getElementById("trouble");
  const announce = document.getElementById("announce");
  let mark = page.dataset.mark, said = page.dataset.say;
  let skew = Date.parse(page.dataset.now) - Date.now();
  let heard = Date.now(), failures = 0, timer = 0, paused = false, fetching = false;

  const clock = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC";
  const lasting = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    const minutes = Math.floor(whole / 60), hours = Math.floor(whole / 3600), days = Math.floor(whole / 86400);
    if (whole < 60) return `${whole} s`;
    if (!hours) return `${minutes} min`;
    if (!days) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
    return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
  };

  function age() {
    const now = Date.now() + skew;
    for (const time of all("time[data-ago]"))
      time.textContent = lasting((now - Date.parse(time.dateTime)) / 1000);
    const late = !paused && Date.now() - heard > LATE + (failures ? 0 : EVERY);
    document.body.classList.toggle("is-stale", late);
    if (late) say(`Not up to date: nothing has been heard from the fleet since ${clock(heard + skew)}`
      + ` (${lasting((Date.now() - heard) / 1000)}). What is shown below is from then. Trying again.`);
    else if (!failures) say("");
  }

  function say(text) {
    if (trouble.textContent === text) return;
    const begins = !trouble.textContent && text, ends = trouble.textContent && !text;
    trouble.textContent = text;
    trouble.hidden = !text;
    if (begins) announce.textContent = "The page is not up to date: the fleet does not answer.";
    else if (ends) announce.textContent = "The page is up to date again.";
  }

  // Whoever writes something must not lose it.
  const writing = () => all("form input").some((i) => i.value || i === document.activeElement);

  function replace(html) {
    const parts = new DOMParser().parseFromString(html, "text/html").body;
    const opened = new Map(all("details[id]").map((d) => [d.id, d.open]));
    const scrolled = all(".scroll[id]").map((s) => [s.id, s.scrollLeft]);
    const active = lives.some((live) => live.contains(document.activeElement)) ? document.activeElement : null;
    const place = active && where(active);
    for (const live of lives) live.replaceChildren(...parts.querySelector(`#${live.id}`).childNodes);
    for (const [id, open] of opened) {
      const again = document.getElementById(id);
      if (again) again.open = open;
    }
    for (const [id, left] of scrolled) {
      const again = document.getElementById(id);
      if (again) again.scrollLeft = left;
    }
    if (place) (place() || document.getElementById("main")).focus({ preventScroll: true });
    prepare();
  }

  // How to find again what has the focus: by its address or id, else by what it stands in.
  function where(element) {
    const href = element.getAttribute("href"), id = element.id || "", inside = element.closest("[id]");
    const kind = element.localName;
    return () => {
      if (href) return all("a").find((a) => a.getAttribute("href") === href);
      if (id) return document.getElementById(id);
      return inside && document.getElementById(inside.id)?.querySelector(kind);
    };
  }

  async function refresh() {
    if (fetching) return;
    fetching = true;
    clearTimeout(timer);
    const url = new URL(location.href);
    url.searchParams.set("part", "live");
    url.hash = "";
    try {
      const headers = mark ? { "If-None-Match": `"${mark}"` } : {};
      const answer = await fetch(url, { headers, signal: AbortSignal.timeout(TIMEOUT), redirect: "error" });
      if (answer.status !== 304 && !(answer.ok && answer.headers.has("X-Page-Mark"))) throw new Error(answer.status);
      const html = answer.status === 304 ? null : await answer.text();
      if (paused && html !== null) return;
      if (html !== null && writing()) { heard = Date.now(); return; }
      if (html !== null) {
        replace(html);
        mark = answer.headers.get("X-Page-Mark");
        const now = answer.headers.get("X-Page-Say");
        if (now && decodeURIComponent(now) !== said) announce.textContent = said = decodeURIComponent(now);
      }
      const at = answer.headers.get("X-Page-At");
      if (at) skew = Date.parse(at) - Date.now();
      heard = Date.now();
      failures = 0;
      fresh.textContent = `As of ${clock(heard + skew)}.`;
      age();
    } catch {
      failures += 1;
      say(`Not up to date: the fleet does not answer. What is shown below is from ${clock(heard + skew)}. Trying again.`);
    } finally {
      fetching = false;
      plan();
    }
  }

  function plan() {
    clearTimeout(timer);
    if (paused || document.hidden) return;
    timer = setTimeout(refresh, Math.min(SLOWEST, EVERY * 2 ** Math.min(failures, 4)));
  }

  document.getElementById("still").hidden = true;
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (paused) { fresh.textContent = `Paused; as of ${clock(heard + skew)}.`; plan(); } else refresh();
  });
  document.addEventListener("visibilitychange", () => (document.hidden || paused ? plan() : refresh()));
  window.addEventListener("online", () => paused || refresh());

  // --- taking a halt in hand ---
  function prepare() {
    for (const form of all("form.ack")) {
      form.hidden = false;
      form.addEventListener("submit", acknowledge);
    }
  }

  async function acknowledge(event) {
    event.preventDefault();
    const form = event.currentTarget, answer = form.querySelector(".said"), button = form.querySelector("button");
    const fields = Object.fromEntries(new FormData(form));
    button.disabled = true;
    answer.textContent = "Sending …";
    try {
      const sent = await fetch(`/v1/fleet/halts/${encodeURIComponent(form.dataset.halt)}/ack`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ session_id: form.dataset.session, by: fields.by, decision: fields.decision }),
        signal: AbortSignal.timeout(TIMEOUT * 3),
      });
      const body = await sent.json();
      if (!sent.ok) throw new Error(body.reasons?.[0]?.detail ?? `the fleet answered ${sent.status}`);
      answer.textContent = "Taken in hand.";
      form.reset();
      setTimeout(refresh, 1000);
    } catch (error) {
      answer.textContent = `Not taken in hand: ${error.message}`;
    } finally {
      button.disabled = false;
    }
  }

  prepare();
  setInterval(age, 5000);
  plan();
})();
