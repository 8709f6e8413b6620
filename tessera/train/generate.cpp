#include "tessera/train/generate.h"

#include "tessera/data/text_stream.h"
#include "tessera/models/generation.h"
#include "tessera/train/text_model.h"

namespace tessera::train {
namespace {

// An encoder reads a whole text; what a decoder goes on from has no end yet.
std::vector<int32_t> framed(const TextModel& model, const std::string& text) {
  const data::SampleFrame& frame = model.tokenizer->frame();
  std::vector<int32_t> ids = frame.before;
  const std::vector<int32_t> own = model.tokenizer->encode(text);
  ids.insert(ids.end(), own.begin(), own.end());
  if (model.encodes) ids.insert(ids.end(), frame.after.begin(), frame.after.end());
  return ids;
}

}  // namespace

void generate_text(const GenerateOptions& options) {
  const TextModel model = load_text_model(options, /*may_encode=*/true, "tessera generate runs");
  for (const std::string& prompt : options.prompts) {
    const std::vector<int32_t> ids = framed(model, prompt);
    models::GenerationOptions how = generation_options(model, ids.size(), kGeneratedTokens, "tessera generate");
    how.beams = options.beams;
    data::TextStream stream(*model.tokenizer, model.encodes ? std::vector<int32_t>() : ids);
    if (!model.encodes) print_now(prompt);
    how.on_token = [&](size_t /*row*/, int32_t token) { print_now(stream.add(token)); };
    models::generate(*model.writer, ids, how);
    print_now(stream.finish() + "\n");
  }
}

}  // namespace tessera::train
