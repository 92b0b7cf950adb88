// Keeps the talk's end in sight while it grows, until the reader scrolls up from it. Who has scrolled
// back to it is followed again. What the page draws never counts as the reader's scrolling, however
// much of it comes at once.

const NEAR_THE_END_PX = 120;
const DRAWN = {
  subtree: true, childList: true, characterData: true, attributes: true,
  attributeFilter: ["class", "open", "style"],
};

export class Following {
  // `turns`, the talk, stands above `composer`, which sticks to the window's lower edge.
  constructor(turns, composer) {
    this.turns = turns;
    this.composer = composer;
    this.isOn = false;
    this.lastY = scrollY;
    const look = () => this.look();
    new MutationObserver((changes) => this.lookAfter(changes)).observe(turns, DRAWN);
    const sizes = new ResizeObserver(look); // Of images, fonts and the composer: nothing is drawn for them.
    sizes.observe(turns);
    sizes.observe(composer);
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", () => this.lookAtNewSize());
  }

  // An answer is asked for: it is followed where the end is in sight now.
  begin() {
    this.look();
    this.turnTo(this.isOn || this.isNearTheEnd());
  }

  end() {
    this.turnTo(false);
  }

  // The page itself moves up only where it has become shorter than it was scrolled.
  look() {
    const { scrollHeight, clientHeight } = document.documentElement;
    const isMovedUp = scrollY < Math.min(this.lastY, scrollHeight - clientHeight - 1);
    if (isMovedUp) this.turnTo(false);
    else if (scrollY > this.lastY && this.isNearTheEnd()) this.turnTo(true);
    if (this.isOn) this.showTheEnd();
    this.lastY = scrollY;
  }

  // A reader who unfolds something long wants to read its beginning.
  lookAfter(changes) {
    const isUnfolded = changes.some(({ attributeName }) => attributeName === "open");
    if (isUnfolded && !this.isNearTheEnd()) this.turnTo(false);
    this.look();
  }

  // A zoomed page counts its pixels anew.
  lookAtNewSize() {
    this.lastY = scrollY;
    this.look();
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
    scrollBy({ top: Math.max(0, Math.ceil(this.belowTheComposer())), behavior: "instant" });
  }
}
