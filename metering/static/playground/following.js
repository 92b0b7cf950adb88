// Keeps the talk's end in sight while it grows, until the reader scrolls up from it. Who has scrolled
// back to it is followed again.

const NEAR_THE_END_PX = 120;
const DRAWN = { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ["open"] };

export class Following {
  // `turns`, the talk, stands above `composer`, which sticks to the window's lower edge.
  constructor(turns, composer) {
    this.turns = turns;
    this.composer = composer;
    this.turnTo(false);
    new MutationObserver((changes) => this.lookAfter(changes)).observe(turns, DRAWN);
    const sizes = new ResizeObserver(() => this.showTheEnd());
    sizes.observe(turns);
    sizes.observe(composer);
    // What the page draws is followed before its scrolling is reported: this is the reader's.
    addEventListener("scroll", () => this.turnTo(this.isNearTheEnd()), { passive: true });
  }

  // An answer is asked for: it is followed where the end is in sight now.
  begin() {
    this.turnTo(this.isOn || this.isNearTheEnd());
  }

  end() {
    this.turnTo(false);
  }

  // A reader who unfolds something long wants to read its beginning.
  lookAfter(changes) {
    const isUnfolded = changes.some(({ attributeName }) => attributeName === "open");
    if (isUnfolded && !this.isNearTheEnd()) this.turnTo(false);
    this.showTheEnd();
  }

  // While the end is followed, the browser does not keep what stands above it in place.
  turnTo(isOn) {
    this.isOn = isOn;
    document.documentElement.style.overflowAnchor = isOn ? "none" : "";
  }

  // How far the talk's end lies below the composer. What stands beside the talk may be longer.
  belowTheComposer() {
    return this.turns.getBoundingClientRect().bottom - this.composer.getBoundingClientRect().top;
  }

  isNearTheEnd() {
    return this.belowTheComposer() < NEAR_THE_END_PX;
  }

  showTheEnd() {
    const top = Math.max(0, Math.ceil(this.belowTheComposer()));
    if (this.isOn) scrollBy({ top, behavior: "instant" });
  }
}
