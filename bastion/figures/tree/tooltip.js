// A definition one hover, or one focus, away from every element with data-term.
function listenTerms(app) {
  const tip = app.part("tip");
  const show = (event) => {
    const owner = event.target.closest && event.target.closest("[data-term]");
    const words = owner && GLOSSARY[owner.dataset.term];
    if (!words) return hide();
    empty(tip);
    tip.append(el("b", {}, owner.dataset.term), " ", words);
    tip.hidden = false;
    owner.setAttribute("aria-describedby", "bs-tip");
    const base = app.base.getBoundingClientRect();
    const at = owner.getBoundingClientRect();
    const left = Math.min(Math.max(at.left - base.left, 0), base.width - tip.offsetWidth);
    const under = at.bottom - base.top + 6;
    const over = at.top - base.top - tip.offsetHeight - 6;
    tip.style.left = `${left}px`;
    tip.style.top = `${at.bottom + tip.offsetHeight + 12 > window.innerHeight && over > 0 ? over : under}px`;
  };
  const hide = () => { tip.hidden = true; };
  app.base.addEventListener("pointerover", show);
  app.base.addEventListener("pointerleave", hide);
  app.base.addEventListener("focusin", show);
  app.base.addEventListener("focusout", hide);
  app.base.addEventListener("pointerdown", hide);
}
