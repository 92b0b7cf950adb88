// The functions that Python calls through ctypes (decoder.py). No exception may pass: a C caller's process
// would end. A call that returns another status than kDone has computed nothing.

#include <new>
#include <stdexcept>

#include "decoder.h"
#include "ggml_blocks.h"
#include "pack.h"

namespace {

enum Status : int32_t { kDone = 0, kNoMemory = 1, kFailed = 2, kOutOfRange = 3 };

template <typename Call>
int32_t status_of(Call call) noexcept {
  try {
    call();
    return kDone;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::length_error&) {  // more than any memory has
    return kNoMemory;
  } catch (const std::out_of_range&) {
    return kOutOfRange;
  } catch (...) {
    return kFailed;
  }
}

}  // namespace

extern "C" {

// Null where there is no memory, or no thread.
void* helexa_decoder_new(const helexa::Model* model, int32_t num_threads) {
  helexa::Decoder* decoder = nullptr;
  status_of([&] { decoder = new helexa::Decoder(*model, num_threads); });
  return decoder;
}

int32_t helexa_decoder_forward(void* decoder, const helexa::Batch* batch) {
  return status_of([&] { static_cast<helexa::Decoder*>(decoder)->forward(*batch); });
}

int32_t helexa_decoder_draw(void* decoder, const float* scores, const helexa::Draw* draws,
                            int32_t count, int64_t* token_ids) {
  return status_of(
      [&] { static_cast<helexa::Decoder*>(decoder)->draw(scores, draws, count, token_ids); });
}

int32_t helexa_decoder_likeliest(void* decoder, const float* scores, int32_t num_rows,
                                 int64_t* token_ids, bool* are_finite) {
  return status_of([&] {
    static_cast<helexa::Decoder*>(decoder)->find_likeliest(scores, num_rows, token_ids, are_finite);
  });
}

// `bits` (count, bits_stride bytes).
void helexa_forbid(float* scores, int32_t vocab_size, const int64_t* rows, int32_t count,
                   const uint8_t* bits, int64_t bits_stride) {
  for (int i = 0; i < count; i++)
    helexa::forbid(scores + rows[i] * vocab_size, vocab_size, bits + i * bits_stride);
}

void helexa_decoder_free(void* decoder) { delete static_cast<helexa::Decoder*>(decoder); }

void helexa_pack(const helexa::TakenApart* weight, uint8_t* panels) {
  helexa::PanelWriter(*weight, panels).write();
}

// `shape` has no codes and no scales: they come from `source`.
void helexa_pack_blocks(const helexa::BlockRows* source, const helexa::TakenApart* shape,
                        uint8_t* panels) {
  helexa::BlockPacker(*source, *shape, panels).write();
}

// Bytes of panels that are read of it.
int64_t helexa_linear_bytes(const helexa::Linear* weight) { return weight->bytes(); }

// Bytes of the keys, or the values, of one (block, kv head).
int64_t helexa_kv_region_bytes(int32_t kv_format, int32_t head_dim) {
  return helexa::with_kv(kv_format, [&]<typename KV>() { return KV::region_bytes(head_dim); });
}

// Bytes of one block's latents.
int64_t helexa_latent_region_bytes(int32_t kv_format, int32_t width) {
  const auto bytes = [&]<typename KV>() { return KV::latent_bytes(width); };
  return helexa::kBlockTokens * helexa::with_kv(kv_format, bytes);
}

int32_t helexa_block_tokens() { return helexa::kBlockTokens; }
int32_t helexa_max_head_dim() { return helexa::kMaxHeadDim; }

}  // extern "C"
