#include "tessera/zero/param_pieces.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"

namespace tessera::zero::param_pieces_test {
namespace {

TEST(ParamPieces, AreAssembledWhateverTheirSizesAndDtype) {
  const std::vector<layout::Range> pieces{{0, 5}, {5, 5}, {5, 9}};  // the second rank has none
  test::spawn_ranks(3, [&](const auto& world) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      const at::Tensor whole = at::arange(9).to(dtype);
      const layout::Range own = pieces[static_cast<size_t>(world->rank())];
      const at::Tensor got = assembled(pieces, whole.narrow(0, own.begin, own.numel()), *world, "p");
      EXPECT_EQ(got.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(got, whole));
    }
  });
}

}  // namespace
}  // namespace tessera::zero::param_pieces_test
