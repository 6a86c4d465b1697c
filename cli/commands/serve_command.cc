// `pipeloom serve`: hands over to pipeloom-service.
#include "cli/run/service_flags.h"

namespace pipeloom::cli {
namespace {

class ServeCommand : public Command {
 public:
  CommandText text() const override { return ServeText(); }
  std::vector<Flag> Flags() override { return ServeFlags(&settings_); }
  absl::Status Run(const std::vector<std::string>& args,
                   const Context&) override {
    if (!args.empty()) return UsageError("unexpected argument " + args[0]);
    return BecomeService();
  }

 private:
  ServeSettings settings_{};
};

}  // namespace

std::unique_ptr<Command> MakeServeCommand() {
  return std::make_unique<ServeCommand>();
}

}  // namespace pipeloom::cli
