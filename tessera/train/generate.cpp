#include "tessera/train/generate.h"

#include <nlohmann/json.hpp>

#include "tessera/data/text_stream.h"
#include "tessera/models/generation.h"
#include "tessera/train/rank_run.h"
#include "tessera/train/text_model.h"

namespace tessera::train {
namespace {

constexpr const char* kUser = "tessera generate runs";

TextModel read_model_of(const GenerateOptions& options) { return read_text_model(options, /*may_encode=*/true, kUser); }

// An encoder reads a whole text; what a decoder goes on from has no end yet.
std::vector<int32_t> framed(const TextModel& model, const std::string& text) {
  const data::SampleFrame& frame = model.tokenizer->frame();
  std::vector<int32_t> ids = frame.before;
  const std::vector<int32_t> own = model.tokenizer->encode(text);
  ids.insert(ids.end(), own.begin(), own.end());
  if (model.encodes) ids.insert(ids.end(), frame.after.begin(), frame.after.end());
  return ids;
}

struct Asked {
  std::string prompt;
  std::vector<int32_t> ids;
  models::GenerationOptions how;
};

models::GenerationOptions how_of(const TextModel& model, const std::vector<int32_t>& prompt, int64_t beams) {
  models::GenerationOptions how = generation_options(model, prompt.size(), kGeneratedTokens, "tessera generate");
  how.beams = beams;
  models::check_generation({prompt}, how);
  return how;
}

// Rank 0 alone may have read standard input. CBOR, as prompts may be no UTF-8.
std::vector<std::string> prompts_of_rank_0(const std::vector<std::string>& own, comm::Group& world) {
  if (world.size() == 1) return own;
  std::vector<uint8_t> bytes;
  if (world.rank() == 0) bytes = nlohmann::json::to_cbor(own);
  const std::string told = world.exchange_texts({bytes.begin(), bytes.end()}, "the prompts").front();
  return nlohmann::json::from_cbor(told).get<std::vector<std::string>>();
}

// Prints as it comes where this rank is the one that prints. Returns the text.
std::string answer(TextModel& model, Asked asked, bool prints) {
  data::TextStream stream(*model.tokenizer, model.encodes ? std::vector<int32_t>() : asked.ids);
  std::string text;
  const auto say = [&](const std::string& more) {
    text += more;
    if (prints) print_now(more);
  };
  if (!model.encodes) say(asked.prompt);
  asked.how.on_token = [&](size_t /*row*/, int32_t token) { say(stream.add(token)); };
  write_text(model, asked.ids, asked.how);
  say(stream.finish() + "\n");
  return text;
}

void generate_in(const GenerateOptions& options, const std::shared_ptr<comm::Group>& world) {
  TextModel model = read_model_of(options);
  std::vector<Asked> all;  // all ranks look at all of them, and so find the same mistake
  for (const std::string& prompt : prompts_of_rank_0(options.prompts, *world)) {
    std::vector<int32_t> ids = framed(model, prompt);
    const models::GenerationOptions how = how_of(model, ids, options.beams);
    all.push_back({prompt, std::move(ids), how});
  }
  load_weights(model, world);
  const auto ranks = static_cast<size_t>(world->size()), rank = static_cast<size_t>(world->rank());
  for (size_t first = 0; first < all.size(); first += ranks) {
    std::string text;
    if (first + rank < all.size()) {
      text = answer(model, all[first + rank], /*prints=*/rank == 0);
    } else {
      take_part(model);
    }
    const std::vector<std::string> texts = world->exchange_texts(text, "what the ranks wrote");
    for (size_t other = 1; rank == 0 && other < ranks; ++other) print_now(texts[other]);
  }
}

}  // namespace

int generate_text(const GenerateOptions& options) {
  return run_as_rank([&](const std::shared_ptr<comm::Group>& world) { generate_in(options, world); });
}

void check_generate(const GenerateOptions& options) {
  const TextModel model = read_model_of(options);
  how_of(model, /*prompt=*/{0}, options.beams);
  for (const std::string& prompt : options.prompts) how_of(model, framed(model, prompt), options.beams);
}

}  // namespace tessera::train
