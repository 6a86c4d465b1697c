// One visitor out of several lambdas:
//   std::visit(Overloaded{[](const Send& s) {...}, [](const Recv& r) {...}},
//              instruction);
// Leave out an `auto` branch: a new alternative then fails to compile until it
// is handled.
#ifndef PIPELOOM_BASE_OVERLOADED_H_
#define PIPELOOM_BASE_OVERLOADED_H_

namespace pipeloom {

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

}  // namespace pipeloom

#endif  // PIPELOOM_BASE_OVERLOADED_H_
