// Conversion of JobSpec, ModelSpec and ClusterSpec to pipeloom.v1. The way back
// is through the reader of JOB files, whose JSON these messages are:
// service/jobs/job_request.h.
#ifndef PIPELOOM_PROTO_CONVERT_JOB_PROTO_H_
#define PIPELOOM_PROTO_CONVERT_JOB_PROTO_H_

#include "ir/job/cluster_spec.h"
#include "ir/job/job_spec.h"
#include "ir/job/model_spec.h"
#include "pipeloom/v1/cluster.pb.h"
#include "pipeloom/v1/job.pb.h"
#include "pipeloom/v1/model.pb.h"

namespace pipeloom::convert {

// Convert values to messages. Consecutive equal layers become one group.
// REQUIRES of all three: valid, names are UTF-8.
v1::ModelSpec ToProto(const ModelSpec& model);
v1::ClusterSpec ToProto(const ClusterSpec& cluster);
// Returns a message that holds model and cluster in full.
v1::Job ToProto(const JobSpec& job);

}  // namespace pipeloom::convert

#endif  // PIPELOOM_PROTO_CONVERT_JOB_PROTO_H_
