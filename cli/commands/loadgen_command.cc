// `pipeloom loadgen`: hands over to pipeloom-service.
#include "cli/run/service_flags.h"

namespace pipeloom::cli {
namespace {

class LoadgenCommand : public Command {
 public:
  CommandText text() const override { return LoadgenText(); }
  std::vector<Flag> Flags() override { return LoadgenFlags(&settings_); }
  absl::Status Run(const std::vector<std::string>& args,
                   const Context&) override {
    if (!args.empty()) return UsageError("unexpected argument " + args[0]);
    return BecomeService();
  }

 private:
  LoadSettings settings_{};
};

}  // namespace

std::unique_ptr<Command> MakeLoadgenCommand() {
  return std::make_unique<LoadgenCommand>();
}

}  // namespace pipeloom::cli
