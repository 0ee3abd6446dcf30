// The shared memory of a block that does not run, which the other blocks of its cluster may reach.
//
// What the block stored, they see once it has arrived at the cluster's barrier with a release:
// behind a relaxed arrival they find what was there before, but for mbarriers, which have a fence
// of their own. Stricter than the PTX memory model in one way: there it suffices that one thread of
// the block releases, behind a barrier of its own; here all that arrive must.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cusim {

class Apart {
 public:
  // Nothing is known but poison, and the block does not run.
  void begin();

  void put_away();
  void take_out();
  bool away() const { return away_; }

  // Where the copy has what the block finds at `shared` when it runs.
  char* place(const void* shared);

  // The block has ended: the others must not read there, nor write; whether they wrote.
  void end();
  bool touched() const;

  // All threads of the cluster have met: the block's with a release, or some without.
  void met(bool released);

  // What others see of it, they see at once, always or as it is now.
  void expose(const void* shared, size_t size);
  void written(const void* shared, size_t size);

 private:
  using Word = uint32_t;
  static Word* words(std::vector<char>& of) { return reinterpret_cast<Word*>(of.data()); }
  template <class F>
  void each_word(const void* shared, size_t size, F f);
  void hide();
  void uncover();

  bool away_ = false;
  std::vector<char> copy_;                 // as others see it
  std::vector<char> own_;                  // where that is hidden, as the block has it
  std::vector<char> published_;            // as it was when the block released last
  std::vector<uint8_t> hidden_, exposed_;  // word by word
  bool hides_ = false;                     // anything
};

}  // namespace cusim
