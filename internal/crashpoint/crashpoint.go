// Package crashpoint marks the moments at which a process may die, so that tests can kill it, or stop
// it for a while, at each of them.
//
// Reach does nothing unless the binary is built with the tag crashpoint. Then, if the directory
// named by the environment variable ESCACHE_CRASHPOINTS (default /run/escache-crashpoints) exists,
// it appends each name it reaches to the file "trace" there, and kills its own process with SIGKILL
// when the name is the content of the file "at". The file "at" is removed first, so the restarted
// process does not die again. The file "stop" stops the process with SIGSTOP in the same way.
package crashpoint
