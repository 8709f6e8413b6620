// What the data room makes of its input, as text, for the checks against reference packages:
//
//   tokenize_tool ids <tokenizer folder> <file> [column]           ids of each row, one line a row
//   tokenize_tool framed <tokenizer folder> <file> [column]        the same, in the tokenizer's frame
//   tokenize_tool places <tokenizer folder> <file> [column]        id,begin,end of each token of a row, one line a row
//   tokenize_tool framed_places <tokenizer folder> <file> [column]  the same, in the tokenizer's frame
//   tokenize_tool decoded <tokenizer folder> <file> [column]       ids of each row decoded again, as a JSON string
//   tokenize_tool streamed <tokenizer folder> <file> [column]       the same, one token after the other
//   tokenize_tool chat <tokenizer folder> <file> [template] [length]  ids and targets of each sample, as a JSON object
//   tokenize_tool pairs <tokenizer folder> <file> <length> [single]  ids, token types and label of each row's texts,
//                                                                 first and second, or of the first alone
//   tokenize_tool preferences <tokenizer folder> <file> [length]  ids and targets of both answers, as a JSON object
//   tokenize_tool texts <file> [column]                           each row as a JSON string, one line a row
//   tokenize_tool order <n> <world> <seed> <epoch> <drop_last>     epoch_order, one line
//   tokenize_tool speed <tokenizer folder> <file>...               seconds to build the dataset
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/chat_dataset.h"
#include "tessera/data/dataset.h"
#include "tessera/data/label_collator.h"
#include "tessera/data/label_dataset.h"
#include "tessera/data/preference_dataset.h"
#include "tessera/data/reader.h"
#include "tessera/data/sampler.h"
#include "tessera/data/text_stream.h"
#include "tessera/data/tokenizer.h"

namespace {

using namespace tessera::data;

void print_ids(const std::vector<std::string>& arguments, bool framed) {
  const auto tokenizer = load_tokenizer(arguments.at(0));
  const SampleFrame frame = framed ? tokenizer->frame() : SampleFrame();
  for (const std::string& text : read_texts(arguments.at(1), arguments.size() > 2 ? arguments[2] : "text")) {
    std::vector<int32_t> ids = tokenizer->encode(text);
    ids.insert(ids.begin(), frame.before.begin(), frame.before.end());
    ids.insert(ids.end(), frame.after.begin(), frame.after.end());
    fmt::print("{}\n", fmt::join(ids, " "));
  }
}

void print_places(const std::vector<std::string>& arguments, bool framed) {
  const auto tokenizer = load_tokenizer(arguments.at(0));
  for (const std::string& text : read_texts(arguments.at(1), arguments.size() > 2 ? arguments[2] : "text")) {
    std::string line;
    for (const auto& [id, begin, end] : framed ? tokenizer->encode_framed(text) : tokenizer->encode_with_offsets(text))
      line += fmt::format("{}{},{},{}", line.empty() ? "" : " ", id, begin, end);
    fmt::print("{}\n", line);
  }
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  TextStream stream(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += stream.add(id);
  return text + stream.finish();
}

void print_decoded(const std::vector<std::string>& arguments, bool one_by_one) {
  const auto tokenizer = load_tokenizer(arguments.at(0));
  for (const std::string& text : read_texts(arguments.at(1), arguments.size() > 2 ? arguments[2] : "text")) {
    const std::vector<int32_t> ids = tokenizer->encode(text);
    const std::string again = one_by_one ? streamed(*tokenizer, ids) : tokenizer->decode(ids, /*skip_special=*/true);
    fmt::print("{}\n", nlohmann::json(again).dump());
  }
}

template <class Samples>
nlohmann::json sample_of(const Samples& samples, size_t i) {
  const auto ids = samples.sample(i);
  std::vector<int> targets;
  for (size_t place = 0; place < ids.size(); ++place)
    targets.push_back(samples.is_target(i, static_cast<int64_t>(place)));
  return {{"ids", std::vector<int32_t>(ids.begin(), ids.end())}, {"targets", targets}};
}

void print_chat(const std::vector<std::string>& arguments) {
  const auto tokenizer = load_tokenizer(arguments.at(0));
  const ChatDataset dataset(*tokenizer, {.files = {arguments.at(1)},
                                         .tokenizer_folder = arguments.at(0),
                                         .chat_template = arguments.size() > 2 ? arguments[2] : "",
                                         .max_length = arguments.size() > 3 ? std::stol(arguments[3]) : 100'000});
  for (size_t i = 0; i < dataset.size(); ++i) fmt::print("{}\n", sample_of(dataset, i).dump());
}

void print_preferences(const std::vector<std::string>& arguments) {
  const auto tokenizer = load_tokenizer(arguments.at(0));
  const PreferenceDataset dataset(*tokenizer, {.files = {arguments.at(1)},
                                               .tokenizer_folder = arguments.at(0),
                                               .max_length = arguments.size() > 2 ? std::stol(arguments[2]) : 100'000});
  for (size_t i = 0; i < dataset.size(); ++i) {
    fmt::print("{}\n", nlohmann::json{{"chosen", sample_of(dataset.chosen(), i)},
                                      {"rejected", sample_of(dataset.rejected(), i)}}
                           .dump());
  }
}

void print_pairs(const std::vector<std::string>& arguments) {
  const auto tokenizer = load_tokenizer(arguments.at(0));
  const std::vector<std::string> files = {arguments.at(1)};
  const LabelDataset dataset(*tokenizer, {.files = files,
                                          .text_column = "first",
                                          .pair_column = arguments.size() > 3 ? "" : "second",
                                          .labels = labels_of_files(files, "label"),
                                          .max_length = std::stol(arguments.at(2)),
                                          .drop_empty = false});
  const LabelCollator collator(dataset, {});
  for (size_t i = 0; i < dataset.size(); ++i) {
    const Batch batch = collator.collate({&i, 1}, 0);
    nlohmann::json row;
    for (const auto& [name, array] : batch.arrays) row[name] = array.values;
    fmt::print("{}\n", row.dump());
  }
}

void print_texts(const std::vector<std::string>& arguments) {
  for (const std::string& text : read_texts(arguments.at(0), arguments.size() > 1 ? arguments[1] : "text")) {
    fmt::print("{}\n", nlohmann::json(text).dump());
  }
}

void print_order(const std::vector<std::string>& arguments) {
  const SamplerOptions options{.dataset_size = std::stoul(arguments.at(0)),
                               .world_size = std::stol(arguments.at(1)),
                               .seed = std::stoul(arguments.at(2)),
                               .drop_last = arguments.at(4) == "1"};
  fmt::print("{}\n", fmt::join(epoch_order(options, std::stol(arguments.at(3))), " "));
}

void print_speed(const std::vector<std::string>& arguments) {
  const auto tokenizer = load_tokenizer(arguments.at(0));
  const auto start = std::chrono::steady_clock::now();
  const TokenizedDataset dataset(*tokenizer, {.files = {arguments.begin() + 1, arguments.end()}, .max_length = 512});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("{} samples, {} tokens in {:.3f} s\n", dataset.size(), dataset.total_tokens(), seconds.count());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const std::vector<std::string> arguments(argv + (argc > 1 ? 2 : 1), argv + argc);
  try {
    if (what == "ids" || what == "framed") {
      print_ids(arguments, what == "framed");
    } else if (what == "places" || what == "framed_places") {
      print_places(arguments, what == "framed_places");
    } else if (what == "decoded" || what == "streamed") {
      print_decoded(arguments, what == "streamed");
    } else if (what == "chat") {
      print_chat(arguments);
    } else if (what == "pairs") {
      print_pairs(arguments);
    } else if (what == "preferences") {
      print_preferences(arguments);
    } else if (what == "texts") {
      print_texts(arguments);
    } else if (what == "order") {
      print_order(arguments);
    } else if (what == "speed") {
      print_speed(arguments);
    } else {
      std::fputs(
          "usage: tokenize_tool "
          "ids|framed|places|framed_places|decoded|streamed|chat|pairs|preferences|texts|order|speed "
          "…\n",
          stderr);
      return 2;
    }
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error.kind());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
