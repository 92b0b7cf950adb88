// An answer as it comes in: text, thinking, calls, and what it took. Pure but for the clock.

export function newAnswer(model = "") {
  return {
    role: "assistant",
    model,
    text: "",
    thinking: "",
    calls: [],
    finish: "",
    error: "",
    requestId: "",
    stats: null,
    isRunning: true,
  };
}

export class AnswerReader {
  constructor(turn, nowMs) {
    this.turn = turn;
    this.nowMs = nowMs;
    this.startedMs = nowMs();
    this.firstMs = null;
  }

  add(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { delta = {} } = choice;
    if (delta.content || delta.reasoning_content || delta.tool_calls) this.firstMs ??= this.nowMs();
    if (delta.content) this.turn.text += delta.content;
    if (delta.reasoning_content) this.turn.thinking += delta.reasoning_content;
    for (const part of delta.tool_calls ?? []) this.addCall(part);
    if (choice.finish_reason) this.turn.finish = choice.finish_reason;
  }

  addCall(part) {
    const call = (this.turn.calls[part.index] ??= { id: "", name: "", arguments: "", result: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name = part.function.name;
    call.arguments += part.function?.arguments ?? "";
  }

  end() {
    this.endedMs = this.nowMs();
    this.turn.isRunning = false;
    this.count(this.usage);
  }

  // By the record of its request: what it cost; and its tokens, which a stopped stream does not bring.
  countByRecord(record) {
    const recorded = {
      prompt_tokens: record.prompt_tokens,
      completion_tokens: record.completion_tokens,
      prompt_tokens_details: { cached_tokens: record.cached_tokens },
    };
    this.count(this.usage ?? recorded, record.cost_micro_usd);
  }

  // Tokens as the server counted them; times as this browser saw them.
  count(usage, costMicroUsd = 0) {
    this.usage = usage;
    const { endedMs } = this;
    const tokens = this.usage?.completion_tokens ?? null;
    const decodeMs = this.firstMs === null ? 0 : endedMs - this.firstMs;
    this.turn.stats = {
      isCut: this.turn.finish === "length",
      promptTokens: this.usage?.prompt_tokens ?? null,
      cachedTokens: this.usage?.prompt_tokens_details?.cached_tokens ?? 0,
      tokens,
      costMicroUsd,
      firstMs: this.firstMs === null ? null : Math.round(this.firstMs - this.startedMs),
      tokensPerS: tokens > 1 && decodeMs > 0 ? ((tokens - 1) * 1000) / decodeMs : null,
    };
  }
}

export function inWords(stats) {
  if (!stats) return "";
  const cached = stats.cachedTokens ? ` (${stats.cachedTokens} cached)` : "";
  return [
    stats.promptTokens === null ? "" : `${stats.promptTokens} tokens in${cached}`,
    stats.tokens === null ? "" : `${stats.tokens} out`,
    stats.firstMs === null ? "" : `first after ${stats.firstMs} ms`,
    stats.tokensPerS === null ? "" : `${stats.tokensPerS.toFixed(1)} tok/s`,
    stats.costMicroUsd ? `$${Number((stats.costMicroUsd / 1e6).toPrecision(3))}` : "",
    stats.isCut ? "cut off: max_tokens, the context or the budget was reached" : "",
  ]
    .filter(Boolean)
    .join(" · ");
}
