// PTX ISA, 8.9 "Ordering of memory operations"; 9.7.13.4 "barrier.cluster".
#include "apart.h"

#include <algorithm>

#include "launch.h"
#include "memory.h"

namespace cusim {

void Apart::begin() {
  const size_t size = shared_copy_size();
  copy_.resize(size);
  raw_fill(copy_.data(), poison, size);
  published_ = copy_;
  hidden_.assign(size / sizeof(Word), 0);
  exposed_.assign(size / sizeof(Word), 0);
  hides_ = false;
  away_ = true;
}

void Apart::put_away() {
  copy_.resize(shared_copy_size());
  copy_shared_to(copy_.data());
  away_ = true;
  if (hides_) hide();
}

void Apart::take_out() {
  if (hides_) uncover();
  copy_shared_from(copy_.data());
  away_ = false;
}

char* Apart::place(const void* shared) { return in_copy(copy_.data(), shared); }

void Apart::end() {
  put_away();
  raw_fill(copy_.data(), poison, copy_.size());
}

bool Apart::touched() const { return first_unpoisoned(copy_.data(), copy_.size()) != nullptr; }

void Apart::met(bool released) {
  if (away_) {
    if (hides_) uncover();
  } else {
    copy_shared_to(copy_.data());
  }
  if (released) {
    published_ = copy_;
    std::fill(hidden_.begin(), hidden_.end(), 0);
  } else {
    for (size_t i = 0; i < hidden_.size(); i++) {
      hidden_[i] = exposed_[i] == 0 && words(copy_)[i] != words(published_)[i];
    }
  }
  hides_ = !released;
  if (away_ && hides_) hide();
}

void Apart::expose(const void* shared, size_t size) {
  each_word(shared, size, [&](size_t word) { exposed_[word] = 1, hidden_[word] = 0; });
}

void Apart::written(const void* shared, size_t size) {
  if (hides_) each_word(shared, size, [&](size_t word) { hidden_[word] = 0; });
}

template <class F>
void Apart::each_word(const void* shared, size_t size, F f) {
  const size_t first = size_t(place(shared) - copy_.data());
  for (size_t i = first / sizeof(Word); i * sizeof(Word) < first + size; i++) f(i);
}

// From what the block has to what others see.
void Apart::hide() {
  own_ = copy_;
  for (size_t i = 0; i < hidden_.size(); i++) {
    if (hidden_[i]) words(copy_)[i] = words(published_)[i];
  }
}

// And back; what others have written there since stays.
void Apart::uncover() {
  for (size_t i = 0; i < hidden_.size(); i++) {
    if (hidden_[i] == 0) continue;
    if (words(copy_)[i] == words(published_)[i]) {
      words(copy_)[i] = words(own_)[i];
    } else {
      hidden_[i] = 0;
    }
  }
}

}  // namespace cusim
