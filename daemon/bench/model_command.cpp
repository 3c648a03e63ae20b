#include "bench/model_command.h"

#include <fmt/ostream.h>

#include "bench/generator/checkpoint_writer.h"

namespace weft::bench {

Status write_model(const ModelCommandOptions& o, const Streams& streams) {
  WEFT_ASSIGN(ModelShape shape, preset(o.preset));
  for (const auto& [key, value] : o.numbers) *shape_field(&shape, key) = value;
  if (o.dtype == "f32") {
    shape.all_f32 = true;
    shape.mxfp4 = false;
  }
  WEFT_TRY(settle(&shape));
  GenerateOptions options;
  options.directory = o.directory;
  options.seed = o.seed;
  options.threads = o.threads;
  WEFT_ASSIGN(const GenerateReport report, generate_checkpoint(shape, options));
  fmt::print(streams.out, "{}: {:.1f} MB, {} tensors in {} shards, {:.1f} s\n", o.directory,
             static_cast<double>(report.bytes) / 1e6, report.tensors, report.shards,
             report.seconds);
  return {};
}

}  // namespace weft::bench
