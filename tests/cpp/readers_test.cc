// The bulk formats' readers, line by line into a sink that writes down what it is told.
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "check.h"
#include "ntriples.h"
#include "tsv.h"
#include "utf8.h"
#include "wikidata.h"
#include "wikidata_values.h"

using namespace pymemstore;

namespace {

class Recorder : public FactSink {
 public:
  Result<Ref> Name(Kind kind, std::string_view name) override {
    if (name.empty()) return Status::InvalidArgument("a name is empty");
    return Intern(kind, std::string(name));
  }
  Result<Ref> Key(Kind kind, std::string_view id) override { return Intern(kind, "<" + std::string(id) + ">"); }
  void Fact(Ref s, Ref r, Ref o) override { Say(text(Kind::kEntity, s) + " " + text(Kind::kRelation, r) + " " + text(Kind::kEntity, o)); }
  Status Triple(std::string_view s, std::string_view r, std::string_view o) override {
    if (s.empty() || r.empty() || o.empty()) return Status::InvalidArgument("a name is empty");
    Say(std::string(s) + "|" + std::string(r) + "|" + std::string(o));
    return Status::Ok();
  }
  void Label(Kind kind, Ref ref, std::string_view label, uint32_t rank) override {
    Say(text(kind, ref) + (kind == Kind::kEntity ? " = " : " =r= ") + std::string(label) + " #" + std::to_string(rank >> 16));
  }
  void Alias(Kind kind, Ref ref, std::string_view alias) override {
    Say(text(kind, ref) + (kind == Kind::kEntity ? " ~ " : " ~r~ ") + std::string(alias));
  }
  void Redirect(Kind kind, Ref from, Ref to) override { Say(text(kind, from) + " -> " + text(kind, to)); }
  void Whole(Ref subject) override { Say(text(Kind::kEntity, subject) + " whole"); }

  std::vector<std::string> said;

 private:
  void Say(std::string text) { said.push_back(std::move(text)); }
  Result<Ref> Intern(Kind kind, std::string text) {
    auto& names = names_[Index(kind)];
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i] == text) return static_cast<Ref>(i);
    names.push_back(std::move(text));
    return static_cast<Ref>(names.size() - 1);
  }
  const std::string& text(Kind kind, Ref ref) const { return names_[Index(kind)][ref]; }
  std::vector<std::string> names_[kKinds];
};

std::unique_ptr<LineReader> Wikidata(const std::map<std::string, std::string>& options = {}) {
  auto reader = NewWikidataReader(options);
  CHECK_OK(reader.status());
  return std::move(*reader);
}

std::unique_ptr<LineReader> NTriples(const std::map<std::string, std::string>& options = {}) {
  auto reader = NewNTriplesReader(options);
  CHECK_OK(reader.status());
  return std::move(*reader);
}

using Said = std::vector<std::string>;

}  // namespace

TEST(TsvTakesThreeColumnsAndNothingElse) {
  auto reader = NewTsvReader();
  Recorder sink;
  for (const char* line : {"a\tr\tb", "", "   ", " a \t r\tb "}) CHECK_OK(reader->Line(line, &sink));
  CHECK(sink.said == (Said{"a|r|b", " a | r|b "}));
  for (const char* line : {"a", "a\tr", "a\tr\tb\tc", "\tr\tb", "a\tr\t\xff", "a\tr\t\xed\xa0\x80"}) {
    const Status status = reader->Line(line, &sink);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(!status.message().empty());
  }
  CHECK_EQ(sink.said.size(), 2u);
}

TEST(Utf8IsWellFormedOrNot) {
  for (const char* good : {"", "ascii only, and long enough", "Zürich", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf", "\xe0\xa0\x80"})
    CHECK_EQ(ValidUtf8(good), std::string_view(good).size());
  // Table 3-7 of the Unicode standard: overlong, surrogates, too large, cut, lone continuation.
  for (const char* bad : {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
                          "\xf5\x80\x80\x80", "\xe2\x82", "\x80", "\xff"}) {
    CHECK_EQ(ValidUtf8(bad), 0u);
    CHECK_EQ(ValidUtf8(std::string("12345678") + bad), 8u);
  }
}

TEST(TimesKeepSignAndPrecision) {
  auto time = [](const char* text, int64_t precision, bool julian = false) {
    std::string out;
    return RenderTime(text, precision, julian, &out) ? out : "-";
  };
  CHECK_EQ(time("+1952-03-11T00:00:00Z", 11), "1952-03-11");
  CHECK_EQ(time("+1952-03-11T00:00:00Z", 10), "1952-03");
  CHECK_EQ(time("+1952-03-11T00:00:00Z", 9), "1952");
  CHECK_EQ(time("+1952-00-00T00:00:00Z", 11), "1952");
  CHECK_EQ(time("+1952-03-00T00:00:00Z", 11), "1952-03");
  CHECK_EQ(time("-0044-03-15T00:00:00Z", 11, true), "44-03-15 BCE (Julian)");
  CHECK_EQ(time("+1950-00-00T00:00:00Z", 8), "1950 (decade)");
  CHECK_EQ(time("-13798000000-00-00T00:00:00Z", 3), "13798000000 BCE (10^6 years)");
  CHECK_EQ(time("+00000002013-01-01T00:00:00Z", 11), "2013-01-01");  // as older dumps wrote it
  CHECK_EQ(time("+2020-01-02T03:04:05Z", 14), "2020-01-02 03:04:05");
  CHECK_EQ(time("+2020-01-02T03:04:05Z", 12), "2020-01-02 03");
  for (const char* bad : {"", "1952", "+1952", "+19x2-01-01T00:00:00Z", "+1952-01-01", "+1952-1-1T00:00:00Z"})
    CHECK_EQ(time(bad, 11), "-");
  CHECK_EQ(time("+1952-03-11T00:00:00Z", 15), "-");
}

TEST(QuantitiesAndNumbersKeepTheirDigits) {
  CHECK_EQ(RenderQuantity("+12", "1", "", ""), "12");
  CHECK_EQ(RenderQuantity("-0.50", "http://www.wikidata.org/entity/Q11573", "-0.6", "-0.4"), "-0.50 Q11573 [-0.6, -0.4]");
  CHECK_EQ(RenderQuantity("+100000000000000000000000.5", "1", "", ""), "100000000000000000000000.5");
  CHECK_EQ(RenderDouble(0.0001), "0.0001");
  CHECK_EQ(RenderDouble(49.013888888889), "49.013888888889");
  CHECK_EQ(RenderDouble(-34.9), "-34.9");
}

TEST(ChainsOfLanguagesAreInOrder) {
  uint32_t en, gb, ca, mul, none;
  const char* chain = "en,en-*,mul";
  CHECK(LanguageRank(chain, "en", &en) && LanguageRank(chain, "en-gb", &gb) && LanguageRank(chain, "en-ca", &ca) &&
        LanguageRank(chain, "mul", &mul));
  CHECK(en < ca && ca < gb && gb < mul);
  for (const char* language : {"de", "english", "en-", ""}) CHECK(!LanguageRank(chain, language, &none));
  CHECK(LanguageRank("*", "anything", &none));
}

TEST(AnItemIsItsNamesAndBestStatements) {
  auto reader = Wikidata();
  Recorder sink;
  CHECK_OK(reader->Line("[", &sink));
  CHECK_OK(reader->Line(
      R"({"type":"item","id":"Q1","labels":{"de":{"value":"x"},"en-gb":{"value":"Colour"}},)"
      R"("aliases":{"en":[{"value":"Other"}],"fr":[{"value":"Autre"}]},"claims":{"P1":[)"
      R"({"rank":"normal","mainsnak":{"snaktype":"value","datavalue":{"type":"string","value":"old"}}},)"
      R"({"rank":"preferred","mainsnak":{"snaktype":"value","datavalue":{"type":"string","value":"new"}}}],)"
      R"("P2":[{"mainsnak":{"snaktype":"value","datavalue":{"type":"wikibase-entityid","value":{"entity-type":"item","numeric-id":7}}}},)"
      R"({"rank":"deprecated","mainsnak":{"snaktype":"novalue"}}]}},  )",
      &sink));
  CHECK(sink.said == (Said{"<Q1> = Colour #1", "<Q1> ~ Other", "<Q1> whole", "<Q1> <P1> new", "<Q1> <P2> <Q7>"}));
  CHECK_EQ(reader->counts()["skipped: not best rank"], 1u);
  CHECK_EQ(reader->counts()["skipped: deprecated"], 1u);
  CHECK(reader->End(&sink).code() == Code::kInvalidArgument);  // no closing bracket
  CHECK_OK(reader->Line("]", &sink));
  CHECK_OK(reader->End(&sink));
}

TEST(PropertiesNameRelationsToo) {
  auto reader = Wikidata();
  Recorder sink;
  CHECK_OK(reader->Line(R"({"id":"P5","labels":{"en":{"value":"born in"}},"claims":[]})", &sink));
  CHECK_OK(reader->Line(R"({"entity":"Q8","redirect":"Q9"},)", &sink));
  CHECK(sink.said == (Said{"<P5> = born in #0", "<P5> =r= born in #0", "<P5> whole", "<Q8> -> <Q9>"}));
}

TEST(ShapesOfTheWebApiAreRead) {
  auto reader = Wikidata();
  Recorder sink;
  CHECK_OK(reader->Line(R"({"entities":{"Q1":{"id":"Q1"},"Q2":{"id":"Q2"}},"success":1})", &sink));
  CHECK_OK(reader->Line(R"([{"id":"Q3"}])", &sink));
  CHECK_OK(reader->Line("{", &sink));
  CHECK(!reader->AtRecordStart());
  CHECK_OK(reader->Line(R"(  "id": "Q4")", &sink));
  CHECK_OK(reader->Line("}", &sink));
  CHECK(reader->AtRecordStart());
  CHECK(sink.said == (Said{"<Q1> whole", "<Q2> whole", "<Q3> whole", "<Q4> whole"}));
  CHECK_OK(reader->Line("{", &sink));
  CHECK(!reader->End(&sink).ok());
}

TEST(ARejectedLineHasToldNothing) {
  auto reader = Wikidata();
  Recorder sink;
  for (const char* line :
       {"x", "\"text\"", "{\"id\":\"Q1\"", "{}", R"({"id":"R1"})", R"({"id":"Q1x"})", R"({"id":5})", "{\"id\":\"Q1\xff\"}",
        R"({"id":"Q1","labels":{"en":{"value":"\ud800"}}})", R"({"entity":"Q1","redirect":"nowhere"})", "null", "7"})
    CHECK(reader->Line(line, &sink).code() == Code::kInvalidArgument);
  CHECK(sink.said.empty());
}

TEST(ALineCutToItsBraceCostsNoOther) {
  auto reader = Wikidata();
  Recorder sink;
  CHECK_OK(reader->Line("[", &sink));
  CHECK_OK(reader->Line("{", &sink));
  CHECK(reader->Line(R"({"id":"Q2"},)", &sink).code() == Code::kInvalidArgument);  // says that the one before is cut
  CHECK(reader->AtRecordStart());
  CHECK_OK(reader->Line(R"({"id":"Q3"})", &sink));
  CHECK_OK(reader->Line("]", &sink));
  CHECK_OK(reader->End(&sink));
  CHECK(sink.said == (Said{"<Q2> whole", "<Q3> whole"}));
}

TEST(EachInputHasBracketsOfItsOwn) {
  auto reader = Wikidata();
  Recorder sink;
  CHECK_OK(reader->Line("[", &sink));
  CHECK(!reader->End(&sink).ok());
  for (const char* line : {"[", "]"}) CHECK_OK(reader->Line(line, &sink));
  CHECK_OK(reader->End(&sink));  // the first input's bracket is none of this one's
  CHECK_OK(reader->Line("]", &sink));
  CHECK_OK(reader->End(&sink));
  CHECK_OK(reader->Line("[", &sink));
  CHECK(!reader->End(&sink).ok());  // nor does an odd one of the input before close it
}

TEST(TheWebApisMissingEntitiesAndRedirectsAreRead) {
  auto reader = Wikidata();
  Recorder sink;
  CHECK_OK(reader->Line(R"({"entities":{"Q6":{"id":"Q6","missing":""},"Q3":{"id":"Q1","redirects":{"from":"Q3","to":"Q1"}}}})",
                        &sink));
  CHECK(sink.said == (Said{"<Q1> whole", "<Q3> -> <Q1>"}));
  CHECK_EQ(reader->counts()["skipped: missing entity"], 1u);
  CHECK_EQ(reader->counts()["items"], 1u);
}

TEST(ValuesThatNoSinkTakesCostOnlyTheirFact) {
  auto reader = Wikidata({{"qualifiers", "time"}});
  // As the loader's sink does.
  class Strict : public Recorder {
   public:
    Result<Ref> Key(Kind kind, std::string_view id) override {
      if (id.empty() || id.size() > kMaxExternalIdBytes) return Status::InvalidArgument("a bad key");
      return Recorder::Key(kind, id);
    }
  } sink;
  auto entity = [](const std::string& value) {
    return R"({"mainsnak":{"snaktype":"value","datavalue":{"type":"wikibase-entityid","value":)" + value + "}}}";
  };
  const std::string time = R"({"snaktype":"value","datavalue":{"type":"time","value":{"time":"+1952-00-00T00:00:00Z","precision":9}}})";
  CHECK_OK(reader->Line(
      R"({"id":"Q1","labels":{"en":{"value":"One"}},"claims":{"P1":[)" + entity("{\"id\":\"Q" + std::string(600, '1') + "\"}") +
          "," + entity(R"({"id":"E42","entity-type":"entity-schema"})") + "," +
          entity(R"({"entity-type":"form","numeric-id":7})") + R"(,{"id":")" + std::string(600, 'x') +
          R"(","mainsnak":{"snaktype":"value","datavalue":{"type":"string","value":"v"}},"qualifiers":{"P580":[)" + time +
          R"(]}},{"id":"Q1$1","mainsnak":{"snaktype":"value","datavalue":{"type":"string","value":"w"}},)" +
          R"("qualifiers":{"P580":[{"snaktype":"novalue"}]}}]}})",
      &sink));
  CHECK(sink.said == (Said{"<Q1> = One #0", "<Q1> whole", "<Q1> <P1> <E42>", "<Q1> <P1> v", "<Q1> <P1> w"}));
  CHECK_EQ(reader->counts()["skipped: bad value"], 2u);
  CHECK_EQ(reader->counts()["skipped: bad statement id"], 1u);
  CHECK_EQ(reader->counts()["skipped: novalue"], 0u);  // of main values only
}

TEST(NTriplesFilterAndSkipAsJsonDoes) {
  auto reader = NTriples({{"items", "Q1"}});
  Recorder sink;
  const std::string entity = "<http://www.wikidata.org/entity/", direct = "<http://www.wikidata.org/prop/direct/";
  const std::string label = " <http://www.w3.org/2000/01/rdf-schema#label> ";
  for (const std::string& line :
       {entity + "P36>" + label + "\"capital\"@en .", entity + "Q1> " + direct + "P36> " + entity + "E4> .",
        entity + "Q2> " + direct + "P36> " + entity + "Q1> .", entity + "L1> " + direct + "P36> " + entity + "Q1> .",
        entity + "L1-F1>" + label + "\"ama\"@en ."})
    CHECK_OK(reader->Line(line, &sink));
  CHECK(sink.said == (Said{"<P36> = capital #0", "<P36> =r= capital #0", "<Q1> <P36> <E4>"}));
  CHECK_EQ(reader->counts()["skipped: item filter"], 1u);
  CHECK_EQ(reader->counts()["skipped: lexeme"], 2u);
}

TEST(OptionsAreCheckedByName) {
  CHECK(NewWikidataReader({{"colour", "1"}}).status().message().find("colour") != std::string::npos);
  CHECK(!NewWikidataReader({{"ranks", "worst"}}).ok());
  CHECK(!NewWikidataReader({{"aliases", "yes"}}).ok());
  CHECK(!NewWikidataReader({{"languages", ","}}).ok());
  CHECK(!NewNTriplesReader({{"vocabulary", "none"}}).ok());
  CHECK(!NewNTriplesReader({{"ranks", "best"}}).ok());
}

TEST(NTriplesFollowTheGrammar) {
  auto reader = NTriples({{"vocabulary", "any"}});
  Recorder sink;
  for (const char* line : {"<a:1> <a:r> <a:2> .", "\t<a:1>\t<a:r>\t\"x\\ty\\u00e9\\U0001F600\"@EN-gb.# end", "# only",
                           "<a:1> <a:r> \"7\"^^<a:int> ."})
    CHECK_OK(reader->Line(line, &sink));
  CHECK(sink.said == (Said{"<a:1> <a:r> <a:2>", "<a:1> <a:r> x\ty\u00e9\U0001F600 (en-gb)", "<a:1> <a:r> 7"}));
  for (const char* line :
       {"<a:1> <a:r> <a:2>", "<a:1> <a:r> .", "<a:1> \"r\" <a:2> .", "<a:1> <a:r> \"x .", "<a:1> <a:r> \"\\q\" .",
        "<a:1> <a:r> \"\\ud83d\" .", "<a 1> <a:r> <a:2> .", "<a:1> <a:r> 7 .", "<a:1> <a:r> <a:2> . <a:3>",
        "<relative> <a:r> <a:2> .", "<a:1> <a:r> \"x\"@ .", "<a:1> <a:r> \"x\"@en- .", "<a:1> <a:r> \"x\"^^y .",
        "_: <a:r> <a:2> .", "<a:1> <a:r> \"\\U00110000\" .", "<a:1> <a:r> \"x\"@en1 .", "<a:1> <a:r> \"x\"@en--gb .",
        "<a:1> <a:r> \"x\ry\" .", "<a/b:c> <a:r> <a:2> .", "<:a> <a:r> <a:2> .", "<1:a> <a:r> <a:2> ."})
    CHECK(reader->Line(line, &sink).code() == Code::kInvalidArgument);
  CHECK_OK(reader->Line("_:b <a:r> <a:2> .", &sink));
  CHECK_EQ(reader->counts()["skipped: blank node"], 1u);
  CHECK_EQ(sink.said.size(), 3u);
}

TEST(DamagedLinesNeverDoMoreThanBeRejected) {
  std::mt19937_64 rng(12);
  const std::string json =
      R"({"type":"item","id":"Q1","labels":{"en":{"language":"en","value":"One"}},"claims":{"P1":[{"mainsnak":{"snaktype":)"
      R"("value","property":"P1","datavalue":{"value":{"time":"+1952-03-11T00:00:00Z","precision":11,"calendarmodel":"x/Q1"},)"
      R"("type":"time"}},"rank":"normal"},{"mainsnak":{"snaktype":"value","datavalue":{"value":{"latitude":1.5,"longitude":2,)"
      R"("precision":null,"globe":"x/Q2"},"type":"globecoordinate"}}}]}})";
  const std::string triple = "<http://www.wikidata.org/entity/Q1> <http://www.wikidata.org/prop/direct/P1> \"x\\u00e9\"@en .";
  auto wikidata = Wikidata({{"qualifiers", "time"}});
  auto ntriples = NTriples();
  size_t taken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string line = i % 2 ? json : triple;
    for (size_t n = rng() % 4; n; --n) line[rng() % line.size()] = static_cast<char>(rng());
    if (rng() % 5 == 0) line.resize(rng() % line.size());
    Recorder sink;
    const Status status = (i % 2 ? wikidata : ntriples)->Line(line, &sink);
    CHECK(status.ok() || status.code() == Code::kInvalidArgument);
    taken += status.ok();
    if (!wikidata->AtRecordStart()) (void)wikidata->End(&sink);
  }
  CHECK(taken > 1000);
}
