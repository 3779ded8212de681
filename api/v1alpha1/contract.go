package v1alpha1

// Keys through which csi-controller and csi-node pass data to each other, in CSI contexts and on a
// CacheVolume.
const (
	// PublishContextEpoch is the key in ControllerPublish's publish_context that holds the epoch of
	// the attachment, in decimal. NodeStage refuses to stage if the CacheVolume has another epoch
	// by then.
	PublishContextEpoch = "escache.io/epoch"

	// VolumeContextMkfsOptions is the key in the volume_context that holds more options for
	// mkfs, separated by blanks. It is the StorageClass parameter of the same name.
	VolumeContextMkfsOptions = "mkfsOptions"

	// AnnotationFilesystem on a CacheVolume is csi-node's record of the filesystem it creates, as
	// JSON. csi-node writes it before mkfs begins and again after mkfs has ended. So it recognises
	// a half-written filesystem as its own, and never formats a volume again that was formatted
	// once and now reads blank.
	AnnotationFilesystem = "escache.io/filesystem"
)
