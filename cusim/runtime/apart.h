// A copy of the shared memory of a block that does not run, for the other blocks of its cluster.
//
// The other blocks see this block's stores once it has arrived at the cluster's barrier with a
// release. After a relaxed arrival they still see the old contents, except of mbarriers, which have
// their own fence. In one way this is stricter than the PTX memory model: there, one thread of the
// block may release after a barrier of the block; here, all arriving threads must release.
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
