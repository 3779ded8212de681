// Package failover taints a node that is dead as out of service, so that Kubernetes gives its pods and volumes to other nodes
// without a person. It is off unless asked for, and timid: it acts on proof, on one node at a time, and says why it stood down.
//
// The proof is all of this, without a break, for longer than Policy.After:
//
//   - Kubernetes says that the node is not Ready,
//   - its escached does not answer the controller,
//   - every replication link to it that the other members of its group report is down, and at least one is reported.
//
// It stands down, with an Event on the Node and one log line for each new reason, when
//
//   - another member of the group is not Ready or silent,
//   - half of all members or more look dead: then it is the controller that is cut off,
//   - another node is out of service, by whomever,
//   - the others still reach the node, or none of them replicates with it.
//
// A wrong verdict loses no data: detaching a volume from a node that is out of service fences that node first, and only a current
// copy is promoted. What it costs is that pods are killed that could have gone on.
//
// The taint is the one that Kubernetes' own documentation has an operator set, node.kubernetes.io/out-of-service=nodeshutdown:NoExecute.
// AnnotationTaintedSince on the Node says that it is the controller's; it is written and removed together with the taint. One
// that somebody else has set is never touched. The controller's own is removed when the node is Ready, its escached
// answers, and no volume is attached there on record.
package failover
