// Package failover taints a dead node as out of service, so that Kubernetes gives its pods and
// volumes to other nodes without a person. It is off by default, and timid: it acts on proof, on
// one node at a time, and says why it stood down.
//
// The proof is all of this, without a break, for longer than Policy.After:
//
//   - Kubernetes says that the node is not Ready,
//   - its escached does not answer the controller,
//   - every replication link to it that the other members of its group report is down, and at least
//     one is reported.
//
// It stands down, with an Event on the Node and one log line for each new reason, if
//
//   - another member of the group is not Ready or does not answer,
//   - half of all members or more look dead: then the controller itself is cut off,
//   - another node is out of service, no matter who set the taint,
//   - the others still reach the node, or none of them replicates with it.
//
// A wrong verdict loses no data: before a volume is detached from a node that is out of service,
// the node is fenced, and only a current copy is promoted. The cost is that pods are killed that
// could have gone on.
//
// The taint is node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, which Kubernetes' own
// documentation tells operators to set. AnnotationTaintedSince on the Node marks a taint as the
// controller's own; both are written and removed together. The controller never touches a taint
// that somebody else has set. It removes its own when the node is Ready, its escached answers, and
// no volume is attached there on record.
package failover
