export declare function childrenOf(pid: number): number[]
