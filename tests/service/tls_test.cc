// Who is not let in by TLS and the token, and what he is told: every case by
// its own certificate, made with the openssl command.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/service/service_fixture.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "open sesame";

// Two authorities, of which one signed the certificates in `name`.key/.pem.
class Certificates {
 public:
  Certificates() {
    const std::string key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 ";
    for (const char* ca : {"ca", "other"}) {
      Run(absl::StrCat("req -x509 -nodes -days 2 ", key, "-subj /CN=", ca,
                       " -keyout ", ca, ".key -out ", ca, ".pem"));
    }
    // An authority of one's own: that is what may sign with any dates.
    std::ofstream(folder_.path() + "/ca.conf")
        << "[ca]\ndefault_ca = d\n[d]\ndatabase = index\nserial = serial\n"
           "new_certs_dir = .\ncertificate = ca.pem\nprivate_key = ca.key\n"
           "default_md = sha256\npolicy = p\ncopy_extensions = copy\n"
           "unique_subject = no\n[p]\ncommonName = supplied\n";
    std::ofstream(folder_.path() + "/index");
    std::ofstream(folder_.path() + "/serial") << "01\n";
    Sign(key, "good", "IP:127.0.0.1", "-days 2");
    Sign(key, "expired", "IP:127.0.0.1",
         "-startdate 20200101000000Z -enddate 20200201000000Z");
    Sign(key, "elsewhere", "DNS:elsewhere.example", "-days 2");
  }
  bool ok() const { return ok_; }
  const std::string& folder() const { return folder_.path(); }
  std::string Read(const std::string& name) const {
    std::ifstream file(absl::StrCat(folder_.path(), "/", name));
    return std::string((std::istreambuf_iterator<char>(file)),
                       std::istreambuf_iterator<char>());
  }

 private:
  void Run(const std::string& arguments) {
    const std::string command =
        absl::StrCat("cd ", folder_.path(), " && openssl ", arguments,
                     " >/dev/null 2>&1 </dev/null");
    ok_ = ok_ && std::system(command.c_str()) == 0;
  }
  void Sign(const std::string& key, const std::string& name,
            const std::string& host, const std::string& dates) {
    Run(absl::StrCat("req -new -nodes ", key, "-subj /CN=", name,
                     " -addext subjectAltName=", host, " -keyout ", name,
                     ".key -out ", name, ".csr"));
    Run(absl::StrCat("ca -batch -notext -config ca.conf ", dates, " -in ", name,
                     ".csr -out ", name, ".pem"));
  }
  TempFolder folder_{};
  bool ok_ = true;
};

service::ServerOptions Options(const Certificates& all,
                               const std::string& name) {
  service::ServerOptions options = TestOptions();
  options.tls.certificate = all.Read(name + ".pem");
  options.tls.key = all.Read(name + ".key");
  options.token = kToken;
  return options;
}

std::unique_ptr<v1::PlannerService::Stub> NewStub(
    const std::string& target,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::PlannerService::NewStub(
      grpc::CreateCustomChannel(target, credentials, arguments));
}

std::shared_ptr<grpc::ChannelCredentials> Trusting(const std::string& roots) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = roots;
  return grpc::SslCredentials(options);
}

// Closes a job that nobody opened: OK for whoever is let in.
grpc::Status Call(v1::PlannerService::Stub& stub, const std::string& token) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(20));
  if (!token.empty()) {
    context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
  }
  v1::CloseJobRequest request;
  request.set_job_id("nobody");
  v1::CloseJobResponse response;
  return stub.CloseJob(&context, request, &response);
}

TEST(TlsTest, EverybodyButTheRightCallerIsRefusedAndTheServerGoesOn) {
  const Certificates all;
  if (!all.ok()) GTEST_SKIP() << "openssl is not here";
  const TestService service(Options(all, "good"));
  const auto right = NewStub(service.target(), Trusting(all.Read("ca.pem")));
  const auto still_serves = [&](const char* after) {
    const grpc::Status status = Call(*right, kToken);
    EXPECT_TRUE(status.ok()) << after << ": " << status.error_message();
  };
  still_serves("start");

  const grpc::Status other =
      Call(*NewStub(service.target(), Trusting(all.Read("other.pem"))), kToken);
  EXPECT_EQ(other.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(other.error_message(), HasSubstr("certificate verify failed"));
  still_serves("a caller that trusts another authority");

  const grpc::Status plain = Call(
      *NewStub(service.target(), grpc::InsecureChannelCredentials()), kToken);
  EXPECT_EQ(plain.error_code(), grpc::StatusCode::UNAVAILABLE);
  still_serves("a caller without TLS");

  for (const char* token : {"", "open", "open sesame!", "OPEN SESAME"}) {
    const grpc::Status wrong = Call(*right, token);
    EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED) << token;
    EXPECT_THAT(wrong.error_message(), HasSubstr("\"authorization\" must be"));
    EXPECT_THAT(wrong.error_message(), Not(HasSubstr(kToken)));
  }
  still_serves("wrong tokens");

  // No handshake: silence, text, and a hello that breaks off.
  std::vector<int> silent;
  for (const std::string& text :
       {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01\x00", 7),
        std::string("\x16\x03\x01\xff\xff", 5) + std::string(40'000, '\x01')}) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    const std::string target = service.target();
    address.sin_port = htons(static_cast<uint16_t>(
        std::atoi(target.substr(target.rfind(':') + 1).c_str())));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(
        connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    silent.push_back(fd);
    still_serves("bytes that are no handshake");
  }
  for (const int fd : silent) close(fd);
}

TEST(TlsTest, ACertificateThatIsOverOrAnothersIsNotTrusted) {
  const Certificates all;
  if (!all.ok()) GTEST_SKIP() << "openssl is not here";
  const std::pair<const char*, const char*> cases[] = {
      {"expired", "certificate verify failed"},
      {"elsewhere", "127.0.0.1 is not in peer certificate"}};
  for (const auto& [name, said] : cases) {
    const TestService service(Options(all, name));
    const grpc::Status status =
        Call(*NewStub(service.target(), Trusting(all.Read("ca.pem"))), kToken);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(said)) << name;
  }
}

TEST(TlsTest, ACertificateThatDoesNotFitIsRefusedAtTheStart) {
  const Certificates all;
  if (!all.ok()) GTEST_SKIP() << "openssl is not here";
  service::ServerOptions half = Options(all, "good");
  half.tls.certificate.clear();
  EXPECT_THAT(
      service::Server::Start(half),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("certificate")));
  service::ServerOptions mixed = Options(all, "good");
  mixed.tls.key = all.Read("other.key");
  EXPECT_THAT(service::Server::Start(mixed),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("certificate and key do not fit")));
  service::ServerOptions garbage = Options(all, "good");
  garbage.tls.certificate = "no certificate";
  EXPECT_THAT(
      service::Server::Start(garbage),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("certificate")));
}

// Options with files, whose warnings go to `log`.
service::ServerOptions FileOptions(const std::string& folder,
                                   std::string* log) {
  service::ServerOptions options = TestOptions();
  options.tls.certificate_file = folder + "/live.pem";
  options.tls.key_file = folder + "/live.key";
  options.tls.reload_period = std::chrono::seconds(1);
  options.log_level = service::LogLevel::kWarning;
  options.log = [log](absl::string_view line) {
    log->append(line.data(), line.size());
  };
  return options;
}

void Install(const Certificates& all, const std::string& name) {
  for (const char* kind : {".pem", ".key"}) {
    const std::string next = absl::StrCat(all.folder(), "/next", kind);
    std::ofstream(next) << all.Read(name + kind);
    std::filesystem::permissions(next, std::filesystem::perms(0600));
    std::filesystem::rename(next, absl::StrCat(all.folder(), "/live", kind));
  }
}

TEST(TlsTest, ANewCertificateIsUsedWithoutARestart) {
  const Certificates all;
  if (!all.ok()) GTEST_SKIP() << "openssl is not here";
  Install(all, "expired");
  std::string log;
  const TestService service(FileOptions(all.folder(), &log));
  EXPECT_THAT(log, HasSubstr("certificate_not_valid"));
  EXPECT_THAT(log, HasSubstr("2020-02-01T00:00:00Z"));
  EXPECT_THAT(log, Not(HasSubstr("secret_readable")));
  const auto trusting = [&] {
    return NewStub(service.target(), Trusting(all.Read("ca.pem")));
  };
  EXPECT_EQ(Call(*trusting(), "").error_code(), grpc::StatusCode::UNAVAILABLE);
  Install(all, "good");
  grpc::Status status;
  for (int i = 0; i < 100 && !(status = Call(*trusting(), "")).ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(TlsTest, SecretsThatOthersMayReadAreTold) {
  const Certificates all;
  if (!all.ok()) GTEST_SKIP() << "openssl is not here";
  Install(all, "good");
  std::string log;
  service::ServerOptions options = FileOptions(all.folder(), &log);
  options.token = kToken;
  options.token_file = all.folder() + "/token";
  std::ofstream(options.token_file) << kToken;
  for (const std::string& file : {options.token_file, options.tls.key_file}) {
    std::filesystem::permissions(file, std::filesystem::perms(0644));
  }
  const TestService service(options);
  EXPECT_THAT(log, HasSubstr("chmod 600 " + options.token_file));
  EXPECT_THAT(log, HasSubstr("chmod 600 " + options.tls.key_file));
  EXPECT_THAT(log, Not(HasSubstr(kToken)));
}

}  // namespace
}  // namespace pipeloom::testing
