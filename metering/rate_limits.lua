-- Counts what keys and accounts use. RateLimiter sends this whole file as one script, so each call is
-- atomic: it reads everything, decides, and only then writes.
--
-- What a subject has used is a debt that drains as time passes. One request or one token is MINUTE_MS
-- parts of debt, so a limit of N a minute drains N parts a millisecond. All numbers are whole, and
-- exact in Lua's doubles up to 2^53. At most a whole minute's limit may be owed.
--
--   counts (hash)      requests, requests_at_ms    debt, and when it was that much
--                      tokens, tokens_at_ms        likewise
--                      slot:0 … slot:63            "<second> <tokens>": what was charged in a second
--   open (sorted set)  request id → when its lease ends, unix ms

local MINUTE_MS = 60000
local SLOT_MS = 1000
local NUM_SLOTS = 64

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now_slot = math.floor(now_ms / SLOT_MS)

local function whole(number)
  return string.format('%.0f', number)
end

-- What is still owed. A clock that was set back drains nothing.
local function debt_of(counts_key, kind, per_minute)
  local stored = redis.call('HMGET', counts_key, kind, kind .. '_at_ms')
  if not stored[1] then
    return 0
  end
  local elapsed_ms = math.max(0, now_ms - tonumber(stored[2]))
  return math.max(0, tonumber(stored[1]) - per_minute * elapsed_ms)
end

local function store_debt(counts_key, kind, debt)
  redis.call('HSET', counts_key, kind, whole(debt), kind .. '_at_ms', whole(now_ms))
end

local function slot_field(slot)
  return 'slot:' .. whole(slot % NUM_SLOTS)
end

-- What was charged in a second; nil when nothing was, or the field holds another second by now.
local function tokens_in_slot(stored, slot)
  local second, tokens = string.match(stored or '', '^(%d+) (%d+)$')
  if tonumber(second) == slot then
    return tonumber(tokens)
  end
  return nil
end

local function store_slot(counts_key, slot, tokens)
  redis.call('HSET', counts_key, slot_field(slot), whole(slot) .. ' ' .. whole(tokens))
end

-- Kept until all is drained, and for a minute at least: seconds older than that are never asked for.
local function keep(counts_key, drain_ms)
  redis.call('PEXPIRE', counts_key, whole(math.max(MINUTE_MS, math.ceil(drain_ms))))
end

local function charge_tokens(counts_key, debt, tokens)
  local stored = redis.call('HGET', counts_key, slot_field(now_slot))
  store_debt(counts_key, 'tokens', debt + tokens * MINUTE_MS)
  store_slot(counts_key, now_slot, (tokens_in_slot(stored, now_slot) or 0) + tokens)
end

-- KEYS: counts and open of each subject. ARGV: request id, tokens, the most tokens to charge, lease
-- in ms; then, for each subject, requests a minute, tokens a minute and requests at once, '' where
-- there is no limit. Beyond tokens, half of what is left is charged, up to the most.
-- Returns 1 or 0 (admitted or not), the time in ms, the tokens charged, and for each subject its
-- debts and how many requests it has open, after this one if it was admitted.
local function acquire()
  local request_id, tokens, charged = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  local lease_ms = tonumber(ARGV[5])
  local admitted = true
  local subjects = {}
  for index = 1, #KEYS / 2 do
    local subject = {
      counts_key = KEYS[2 * index - 1],
      open_key = KEYS[2 * index],
      per_minute = tonumber(ARGV[3 * index + 3]),
      tokens_per_minute = tonumber(ARGV[3 * index + 4]),
      max_open = tonumber(ARGV[3 * index + 5]),
      requests = 0,
      tokens = 0,
      num_open = 0,
    }
    if subject.per_minute then
      subject.requests = debt_of(subject.counts_key, 'requests', subject.per_minute)
      admitted = admitted and subject.requests + MINUTE_MS <= subject.per_minute * MINUTE_MS
    end
    if subject.tokens_per_minute then
      subject.tokens = debt_of(subject.counts_key, 'tokens', subject.tokens_per_minute)
      admitted = admitted
        and subject.tokens + tokens * MINUTE_MS <= subject.tokens_per_minute * MINUTE_MS
      local left = subject.tokens_per_minute - math.ceil(subject.tokens / MINUTE_MS)
      charged = math.min(charged, tokens + math.floor(math.max(0, left - tokens) / 2))
    end
    if subject.max_open then
      subject.num_open = redis.call('ZCOUNT', subject.open_key, '(' .. whole(now_ms), '+inf')
      admitted = admitted and subject.num_open + 1 <= subject.max_open
    end
    subjects[index] = subject
  end

  local reply = { admitted and 1 or 0, now_ms, charged }
  for _, subject in ipairs(subjects) do
    if admitted then
      local drain_ms = 0
      if subject.per_minute then
        subject.requests = subject.requests + MINUTE_MS
        store_debt(subject.counts_key, 'requests', subject.requests)
        drain_ms = subject.requests / subject.per_minute
      end
      if subject.tokens_per_minute then
        charge_tokens(subject.counts_key, subject.tokens, charged)
        subject.tokens = subject.tokens + charged * MINUTE_MS
        drain_ms = math.max(drain_ms, subject.tokens / subject.tokens_per_minute)
      end
      if subject.per_minute or subject.tokens_per_minute then
        keep(subject.counts_key, drain_ms)
      end
      if subject.max_open then
        redis.call('ZREMRANGEBYSCORE', subject.open_key, '-inf', whole(now_ms))
        redis.call('ZADD', subject.open_key, whole(now_ms + lease_ms), request_id)
        redis.call('PEXPIRE', subject.open_key, whole(lease_ms))
        subject.num_open = subject.num_open + 1
      end
    end
    reply[#reply + 1] = subject.requests
    reply[#reply + 1] = subject.tokens
    reply[#reply + 1] = subject.num_open
  end
  return reply
end

-- What later charges alone would make the subject owe now: the debt of a bucket that was empty when
-- ``slot`` began and took what was charged since, but for ``without`` tokens in ``slot`` itself. Each
-- second's charges count as made at its end, which is never too little and at most one second's
-- drain too much. nil when nothing is known of ``slot`` any more.
local function debt_since(counts_key, per_minute, slot, without)
  local fields = {}
  for second = slot, now_slot do
    fields[#fields + 1] = slot_field(second)
  end
  local stored = redis.call('HMGET', counts_key, unpack(fields))
  local charged = tokens_in_slot(stored[1], slot)
  if not charged then
    return nil
  end
  local debt = (charged - without) * MINUTE_MS
  local at_ms = math.min((slot + 1) * SLOT_MS, now_ms)
  for second = slot + 1, now_slot do
    local end_ms = math.min((second + 1) * SLOT_MS, now_ms)
    debt = math.max(0, debt - per_minute * (end_ms - at_ms))
    debt = debt + (tokens_in_slot(stored[second - slot + 1], second) or 0) * MINUTE_MS
    at_ms = end_ms
  end
  return debt, charged
end

-- KEYS: counts of each subject. ARGV: the second of the charge, how much of it stands, how much of
-- that is given back; then each subject's tokens a minute.
-- What has drained by itself is not given back a second time: it would let through more than the
-- limit. So a subject goes on owing what charges after this one made it owe.
local function refund()
  local slot, charged, amount = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
  if slot > now_slot or slot <= now_slot - NUM_SLOTS then
    return 0
  end
  for index, counts_key in ipairs(KEYS) do
    local per_minute = tonumber(ARGV[4 + index])
    local later, in_slot = debt_since(counts_key, per_minute, slot, charged)
    if later then
      local debt = debt_of(counts_key, 'tokens', per_minute)
      store_debt(counts_key, 'tokens', math.min(debt, math.max(debt - amount * MINUTE_MS, later)))
      store_slot(counts_key, slot, in_slot - amount)
    end
  end
  return 1
end

-- KEYS: counts of each subject. ARGV: tokens; then each subject's tokens a minute.
-- Charges what was used beyond the bound, past the limit if need be: it has been used.
local function take()
  local tokens = tonumber(ARGV[2])
  for index, counts_key in ipairs(KEYS) do
    local per_minute = tonumber(ARGV[2 + index])
    local debt = debt_of(counts_key, 'tokens', per_minute)
    charge_tokens(counts_key, debt, tokens)
    local drain_ms = (debt + tokens * MINUTE_MS) / per_minute
    keep(counts_key, math.max(drain_ms, redis.call('PTTL', counts_key)))
  end
  return 1
end

-- KEYS: open of each subject. ARGV: request id.
local function release()
  for _, open_key in ipairs(KEYS) do
    redis.call('ZREM', open_key, ARGV[2])
  end
  return 1
end

-- KEYS: one subject's open. ARGV: lease in ms; then request ids. Those that had lapsed, or were lost
-- with a Redis, are open again.
local function renew()
  local lease_ms = tonumber(ARGV[2])
  for index = 3, #ARGV do
    redis.call('ZADD', KEYS[1], whole(now_ms + lease_ms), ARGV[index])
  end
  redis.call('PEXPIRE', KEYS[1], whole(lease_ms))
  return 1
end

local operations = {
  acquire = acquire,
  refund = refund,
  take = take,
  release = release,
  renew = renew,
}
return operations[ARGV[1]]()
