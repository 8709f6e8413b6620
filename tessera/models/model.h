// A model that can be trained, as a Hugging Face folder describes it, and the weights that lie there: what the run, the
// planner and the tasks need to know of it, before and while it is trained. models.cpp has the table of those that
// there are.
//
// A Model holds no parameters; network() makes the module that does, with declared ones (nn/layers.h). The names of its
// parameters are those of Hugging Face's class, so weights and exports need no translation. Safe to read from any
// thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::storage {
class SafetensorsFile;
}

namespace tessera::nn {
class ContextAxis;
class ExpertAxis;
class TensorAxis;
}  // namespace tessera::nn

namespace tessera::models {

// A config.json, read.
struct ModelConfig {
  nlohmann::json values;  // an object
  std::string path;       // for messages
};

// ErrorKind::kData where the folder or the file is missing, or the file is not a JSON object.
ModelConfig read_model_config(const std::string& folder);

// What a network reads in one forward pass, by Hugging Face's names: "input_ids", "attention_mask", "labels", …
class NamedTensors {
 public:
  void set(const std::string& name, at::Tensor tensor) { tensors_[name] = std::move(tensor); }

  // ErrorKind::kUsage where there is none of this name.
  const at::Tensor& at(const std::string& name) const;

  // Undefined where there is none.
  at::Tensor get(const std::string& name) const;

  template <class F>
  void for_each_tensor(F f) const {
    for (const auto& [name, tensor] : tensors_) f(tensor);
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

// What decides the activations of a transformer.
struct Architecture {
  int64_t layers = 0;          // of encoder and decoder together
  int64_t decoder_layers = 0;  // of those, the decoder's, which also attend to what the encoder read
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t ffn = 0;               // features that a token goes through: of a mixture, those of all its experts together
  int64_t experts_of_token = 0;  // of a mixture; 0: there is none
  int64_t router_features = 0;   // outputs of the matrices that choose a token's experts
  int64_t vocab = 0;
  int64_t head_weights = 0;             // elements of the matrices that each target goes through after the last layer
  int64_t max_positions = 0;            // 0: no limit of its own
  bool gated_ffn = false;               // gate, up and down instead of two matrices
  bool logits_of_targets_only = false;  // the head runs on the positions that the loss counts, not on all
  double usual_target_share = 1;        // of the tokens, how many those are where no run says it
  int64_t logit_rows_at_once = 0;       // of those, whose logits exist at once; 0: all (nn/target_loss.h)
  double hidden_dropout = 0;
  double attention_dropout = 0;

  // What one of so many tensor ranks has of it: of heads, features of the feed-forward and words, its part, rounded up.
  Architecture over(int64_t tensor_ranks) const;
};

// One link of the chain of which a network consists, from its inputs to its loss. Modules are named by their paths.
struct Link {
  std::string kind;                  // for reports: "embeddings", "layer", "head", …
  std::vector<std::string> modules;  // whose matrices it multiplies by

  // What else it needs: embeddings, of which it looks up rows, and modules that share a parameter with one of `modules`
  // or with another link's.
  std::vector<std::string> others = {};

  // The module of its experts, where it has some, and the part of them that a token goes through.
  std::string experts = {};
  double share_of_experts = 1;
};

// The module itself, made of layers and units of nn/.
class Network : public torch::nn::Module {
 public:
  // The loss added up over the batch's targets, in fp32: a scalar. Which tensors it reads is the class's; a label of
  // -100 is no target.
  virtual at::Tensor loss_sum(const NamedTensors& batch) = 0;

  // loss_sum(), and after it what an evaluation looks at: of a classifier, its logits.
  virtual std::vector<at::Tensor> outputs(const NamedTensors& batch) { return {loss_sum(batch)}; }

  // Keeps only each block's input and recomputes the rest in backward (nn/activation_checkpoint.h); off at first.
  virtual void checkpoint_activations(bool on) = 0;

  // From now on each rank has its own tokens of every row of a batch that all of the axis have: loss_sum() and
  // run_links() are of those. ErrorKind::kConfig where the class cannot.
  virtual void share_sequences(const nn::ContextAxis& axis);

  // From now on each rank of the axis has its own experts of every layer alone; the others' are taken out. Returns the
  // paths below which those are that this rank has; none over one rank, which has all. ErrorKind::kConfig where there
  // are no experts, or they do not go round.
  virtual std::vector<std::string> share_experts(const nn::ExpertAxis& axis);

  // The chain, at least two links; empty: a pipeline cannot cut it. See models/stages.h.
  virtual std::vector<Link> links() const { return {}; }

  // Some links in a row, [first, end): what leaves them, of what entered, which is nothing for the first one. The last
  // gives outputs().
  virtual std::vector<at::Tensor> run_links(size_t first, size_t end, const std::vector<at::Tensor>& entering,
                                            const NamedTensors& batch);
};

class Model {
 public:
  virtual ~Model() = default;

  // Overrides every dropout probability of config.json.
  virtual void set_dropout(double probability) = 0;

  // Of a mixture of experts, what of the losses of its routers is added to its own (nn/router.h); nothing: as the
  // folder says. ErrorKind::kConfig where it is none.
  virtual void set_router_losses(std::optional<double> balance, std::optional<double> z);

  virtual std::shared_ptr<Network> network() const = 0;

  // This rank's part of it, cut over the ranks of a tensor axis. ErrorKind::kConfig where it cannot be cut over so
  // many: unless a model says how, over no more than one.
  virtual std::shared_ptr<Network> network_over(const nn::TensorAxis& axis) const;

  // Writes the initial value of the named parameter, by (seed, name) alone, so that every rank and every sharding
  // starts alike.
  virtual void initialize(uint64_t seed, const std::string& name, at::Tensor value) const = 0;

  // False for parameters that weight decay leaves alone.
  virtual bool decays(const std::string& name) const = 0;

  // What the bare model is called inside the class with a head, e.g. "bert."; see PretrainedWeights.
  virtual std::string base_prefix() const = 0;

  virtual int64_t vocab_size() const = 0;     // 0: takes no tokens
  virtual int64_t max_positions() const = 0;  // tokens of a sample at most; 0: no limit
  virtual int64_t hidden_size() const = 0;    // by which a ds_config's "auto" sizes go

  // What decides its activations; nothing where they are not those of a transformer.
  virtual std::optional<Architecture> architecture() const = 0;
};

// One of the classes as which transformers has the model: BERT's body with this or that head.
struct ModelClass {
  std::string head;                       // what a task asks for: "MaskedLM" of BertForMaskedLM
  std::string name;                       // "BertForMaskedLM": what config.json calls it, ours and Hugging Face's
  std::vector<std::string> weights_from;  // the classes whose weights it can begin with

  // Modules that some of those lack, which then begin with the model's own initial values.
  std::vector<std::string> new_modules = {};
};

struct ModelType {
  std::vector<ModelClass> classes;  // the first is the one that estimates are for
  std::unique_ptr<Model> (*read)(const ModelConfig& config, const ModelClass& as);
};

// A folder's model, as the class with a head.
struct FolderModel {
  ModelClass as;
  std::unique_ptr<Model> model;
};

// Of the table, by config.json. ErrorKind::kData, with the nearest of those known, for a type that is not in it, or a
// folder of another class. `head`: of ModelClass; `user`, who does what with it, is for messages: "the task mlm
// trains". `changes`: an object whose values take the place of config.json's.
FolderModel read_model(const std::string& folder, const std::string& head,
                       const std::string& user = "this program uses",
                       const nlohmann::json& changes = nlohmann::json::object());

// A generator's seed for one parameter, so that its values do not depend on which others are initialised.
uint64_t seed_of_parameter(uint64_t seed, const std::string& name);

// Adds a type of one's own to the table: at the start of a program, before anything is looked up. `name`: config.json's
// "model_type"; `summary`: one line. ErrorKind::kUsage where the name is taken.
void add_model(const char* name, const char* summary, ModelType type);

// The weights of a Hugging Face folder, found by name: model.safetensors, the files that model.safetensors.index.json
// names, or pytorch_model.bin. safetensors files are mapped, not read, until a tensor is asked for.
//
// A checkpoint of the bare model ("embeddings.…") fits a model with a head ("bert.embeddings.…") and the other way
// round; old names (LayerNorm.gamma, LayerNorm.beta) are known. Which names found no partner is in the report.
class PretrainedWeights {
 public:
  // `base_prefix`: what the bare model is called inside the full one, e.g. "bert.". ErrorKind::kData when the folder
  // has no weights or a file is damaged; the file is named.
  PretrainedWeights(const std::string& folder, std::string base_prefix);
  ~PretrainedWeights();
  PretrainedWeights(PretrainedWeights&&) noexcept;

  // Of one safetensors file, its names as they stand there.
  static PretrainedWeights of_file(const std::string& path);

  // Copies the tensor of that name into `value`, converting its dtype; false when the folder has none.
  // ErrorKind::kData when its shape differs.
  bool fill(const std::string& name, at::Tensor value) const;

  bool contains(const std::string& name) const { return find(name) != nullptr; }

  // Every tensor's name and shape. Nothing of safetensors files is read but their headers.
  std::map<std::string, std::vector<int64_t>> shapes() const;

  // Names in the folder that none of `names` uses.
  std::vector<std::string> unexpected(const std::vector<std::string>& names) const;

 private:
  struct Source;
  PretrainedWeights();
  const std::pair<const std::string, Source>* find(const std::string& name) const;
  void read_safetensors(const std::string& path);
  void read_index(const std::string& folder, const std::string& path);

  std::string base_prefix_;
  std::map<std::string, Source> sources_;
};

}  // namespace tessera::models
