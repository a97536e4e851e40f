#include "format.h"

#include "check.h"

using namespace pymemstore;

TEST(Crc32AsZlib) {
  CHECK_EQ(Crc32("123456789"), 0xcbf43926u);
  CHECK_EQ(Crc32(""), 0u);
  CHECK_EQ(Crc32("6789", Crc32("12345")), 0xcbf43926u);
}

TEST(NameHashIsSipHash24) {
  // Test vectors of the SipHash paper: key 00..0f, message 00..n-1.
  StoreId key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(i);
  std::string message;
  CHECK_EQ(NameHash(key, message), 0x726fdb47dd0e0e31ull);
  for (char c = 0; c < 15; ++c) message.push_back(c);
  CHECK_EQ(NameHash(key, message), 0xa129ca6149be45e5ull);
}

TEST(BigEndianKeysSort) {
  CHECK(Bytes(Key32(255)) < Bytes(Key32(256)));
  CHECK(Bytes(Key64(0xffffffffull)) < Bytes(Key64(0x100000000ull)));
  CHECK_EQ(GetBe64(Key64(0x0123456789abcdefull).data), 0x0123456789abcdefull);
  const TripleIds t{1, 2, 0xfffffffe};
  CHECK(GetSpo(SpoKey(t).data) == t);
}

TEST(NameRecordsRoundTrip) {
  const std::string name("Ana\0Lima", 8);
  const std::string value = EncodeName({7, NameRecord::kForgotten, name});
  NameRecord record;
  CHECK(DecodeName(value, &record));
  CHECK_EQ(record.row_plus_1, 7u);
  CHECK(!record.live());
  CHECK(record.name == name);
  CHECK(!DecodeName(Bytes(value).substr(0, 9), &record));  // no name has no bytes
}

TEST(CountersMayGrow) {
  Counters c;
  c.next_name[1] = 5;
  c.next_source = 9;
  std::string value = EncodeCounters(c) + "later versions append";
  Counters read;
  CHECK(DecodeCounters(value, &read));
  CHECK_EQ(read.next_name[1], 5u);
  CHECK_EQ(read.next_source, 9u);
  CHECK(!DecodeCounters(value.substr(0, 20), &read));
}

TEST(LogRecordsRoundTripAndRefuseDamage) {
  LogRecord replace;
  replace.type = ChangeType::kReplace;
  replace.time_us = 12;
  replace.triple = 1ull << 40;
  replace.removed = {3, 4};
  LogRecord rename;
  rename.type = ChangeType::kRename;
  rename.kind = Kind::kRelation;
  rename.name = 6;
  rename.text = "old";
  rename.other = std::string("n\0w", 3);
  LogRecord add;
  add.triple = 9;
  add.count = 100;
  for (const LogRecord& record : {replace, rename, add}) {
    const std::string value = EncodeLog(record);
    LogRecord read;
    CHECK(DecodeLog(value, &read));
    CHECK(EncodeLog(read) == value);
    CHECK_EQ(read.removed, record.removed);
    CHECK_EQ(read.other, record.other);
    for (size_t n = 0; n < value.size(); ++n) {
      LogRecord cut;
      CHECK(!DecodeLog(Bytes(value).substr(0, n), &cut));
    }
    LogRecord more;
    CHECK(!DecodeLog(value + "x", &more));
  }
  LogRecord unknown;
  CHECK(!DecodeLog(std::string(13, '\x7f'), &unknown));
}

TEST(VectorHeaderNamesWhatIsWrong) {
  StoreId id{};
  id[3] = 1;
  const std::string header = EncodeVectorHeader(id, Kind::kEntity, 256);
  CHECK_EQ(header.size(), kVectorHeaderBytes);
  CHECK_EQ(CheckVectorHeader(header, id, Kind::kEntity, 256), "");
  CHECK(CheckVectorHeader(header, id, Kind::kEntity, 255) != "");
  CHECK(CheckVectorHeader(header, id, Kind::kRelation, 256) != "");
  CHECK(CheckVectorHeader(header, StoreId{}, Kind::kEntity, 256).find("another store") != std::string::npos);
  CHECK(CheckVectorHeader(header.substr(0, 100), id, Kind::kEntity, 256).find("shorter") != std::string::npos);
  std::string damaged = header;
  damaged[17] ^= 1;
  CHECK(CheckVectorHeader(damaged, id, Kind::kEntity, 256).find("damaged") != std::string::npos);
}

TEST(QuoteEscapesWhatCantBeSeen) {
  CHECK_EQ(Quote("Paris"), "'Paris'");
  CHECK_EQ(Quote(Bytes("a\0b", 3)), "'a\\x00b'");
  CHECK_EQ(Quote("abc\xe2\x80\xae" "cba"), "'abc\\xe2\\x80\\xae" "cba'");  // right-to-left override
  CHECK_EQ(Quote("\xef\xbb\xbf" "Data"), "'\\xef\\xbb\\xbf" "Data'");      // byte order mark
  CHECK_EQ(Quote("S\xc3\xa3o"), "'S\xc3\xa3o'");
  // Cut, but never inside a character.
  const std::string cut = Quote(std::string(79, 'a') + "\xc3\xa9" + std::string(50, 'b'));
  CHECK_EQ(cut, "'" + std::string(79, 'a') + "\xc3\xa9'... (131 bytes)");
}
