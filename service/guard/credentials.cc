#include "service/guard/credentials.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::service {
namespace {

constexpr time_t kSoon = 14 * 24 * 3600;  // Seconds.

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

// The one protocol: its length and its name.
constexpr unsigned char kHttp2[] = {2, 'h', '2'};

int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* in, unsigned int in_size, void*) {
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kHttp2, sizeof(kHttp2), in,
                            in_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

std::unique_ptr<BIO, Free> Reader(const std::string& text) {
  return std::unique_ptr<BIO, Free>(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file) text << file.rdbuf();
  if (!file || !text) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", path, ": ", strerror(errno)));
  }
  return text.str();
}

std::string TimeText(const ASN1_TIME* time) {
  tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return "?";
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// Adds the certificates behind the first one of a PEM text.
bool AddChain(const std::string& text, SSL_CTX* context) {
  const auto bio = Reader(text);
  bool first = true;
  while (X509* const next =
             PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    if (!first && SSL_CTX_add0_chain_cert(context, next) == 1) continue;
    X509_free(next);
    if (!first) return false;
    first = false;
  }
  return true;
}

// Makes a context of a certificate and its key. Checks that they are texts of
// that kind and fit together, and warns of the certificate's times.
absl::StatusOr<TlsContexts::Context> MakeContext(
    const std::string& certificate_text, const std::string& key_text,
    Log* log) {
  const auto certificate_bio = Reader(certificate_text);
  const std::unique_ptr<X509, Free> certificate(
      PEM_read_bio_X509(certificate_bio.get(), nullptr, nullptr, nullptr));
  const auto key_bio = Reader(key_text);
  const std::unique_ptr<EVP_PKEY, Free> key(
      PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr || key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the TLS %s is no PEM text of one",
                        certificate == nullptr ? "certificate" : "key"));
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        "the TLS certificate and key do not fit together");
  }
  const ASN1_TIME* begin = X509_get0_notBefore(certificate.get());
  const ASN1_TIME* end = X509_get0_notAfter(certificate.get());
  time_t soon = time(nullptr) + kSoon;
  if (X509_cmp_current_time(end) < 0 || X509_cmp_current_time(begin) > 0) {
    log->Write(LogLevel::kWarning, "certificate_not_valid",
               {{"from", TimeText(begin)}, {"until", TimeText(end)}});
  } else if (X509_cmp_time(end, &soon) < 0) {
    log->Write(LogLevel::kWarning, "certificate_ends_soon",
               {{"until", TimeText(end)}});
  }
  TlsContexts::Context context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  const bool made =
      context != nullptr &&
      SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) == 1 &&
      SSL_CTX_set_cipher_list(context.get(), "ECDHE+AESGCM:ECDHE+CHACHA20") ==
          1 &&
      SSL_CTX_use_certificate(context.get(), certificate.get()) == 1 &&
      AddChain(certificate_text, context.get()) &&
      SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1;
  ERR_clear_error();
  if (!made) {
    return absl::InvalidArgumentError(
        "the TLS certificate and key cannot be used; they need a chain of PEM "
        "texts and a key that TLS 1.2 allows");
  }
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION);
  // Clients keep their connections, so that tickets would save nothing.
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS |
                                      SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  return context;
}

// A pair of texts, to see whether either changed.
std::string Texts(const std::string& certificate, const std::string& key) {
  return absl::StrCat(certificate, "\n", key);
}

}  // namespace

void WarnIfOthersMayRead(const std::string& path, Log* log) {
  struct stat info {};
  if (path.empty() || stat(path.c_str(), &info) != 0 ||
      (info.st_mode & 077) == 0) {
    return;
  }
  log->Write(LogLevel::kWarning, "secret_readable",
             {{"file", path},
              {"mode", absl::StrFormat("%04o", info.st_mode & 07777)},
              {"remedy", absl::StrCat("chmod 600 ", path)}});
}

absl::StatusOr<std::unique_ptr<TlsContexts>> TlsContexts::Create(
    const TlsOptions& options, Log* log) {
  if (options.certificate.empty() != options.key.empty() ||
      options.certificate_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError(
        "TLS needs a certificate and its key; one of them is missing");
  }
  if (!options.on()) return nullptr;
  std::string certificate = options.certificate;
  std::string key = options.key;
  if (!options.certificate_file.empty()) {
    WarnIfOthersMayRead(options.key_file, log);
    PIPELOOM_ASSIGN_OR_RETURN(certificate, ReadFile(options.certificate_file));
    PIPELOOM_ASSIGN_OR_RETURN(key, ReadFile(options.key_file));
  }
  PIPELOOM_ASSIGN_OR_RETURN(Context context,
                            MakeContext(certificate, key, log));
  return std::unique_ptr<TlsContexts>(new TlsContexts(
      options, std::move(context), Texts(certificate, key), log));
}

TlsContexts::TlsContexts(const TlsOptions& options, Context context,
                         const std::string& texts, Log* log)
    : options_(options), log_(log), current_(std::move(context)) {
  if (options_.certificate_file.empty()) return;
  thread_ = std::jthread(
      [this, texts](const std::stop_token& stop) { Reload(stop, texts); });
}

void TlsContexts::Reload(const std::stop_token& stop, std::string texts) {
  const std::stop_callback on_stop(stop, [this] {
    const MutexLock lock(&mutex_);
    stopped_.NotifyAll();
  });
  while (true) {
    {
      const MutexLock lock(&mutex_);
      stopped_.WaitFor(&mutex_, options_.reload_period,
                       [&stop] { return stop.stop_requested(); });
    }
    if (stop.stop_requested()) return;
    const absl::StatusOr<std::string> certificate =
        ReadFile(options_.certificate_file);
    const absl::StatusOr<std::string> key = ReadFile(options_.key_file);
    if (!certificate.ok() || !key.ok()) continue;  // Being exchanged.
    std::string now = Texts(*certificate, *key);
    if (now == texts) continue;
    texts = std::move(now);
    absl::StatusOr<Context> context = MakeContext(*certificate, *key, log_);
    if (!context.ok()) {
      // One of the files may be the old one still.
      log_->Write(LogLevel::kWarning, "certificate_not_used",
                  {{"reason", context.status().message()}});
      continue;
    }
    const MutexLock lock(&mutex_);
    current_ = *std::move(context);
  }
}

}  // namespace pipeloom::service
